"""The built site in a real browser, and in front of the checkers that read HTML."""
