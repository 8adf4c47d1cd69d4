"""The commands of the side that measures: one file a command, and the small modules that they share."""
