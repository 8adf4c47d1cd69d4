"""The commands of the side that needs no GPU: one file a command, and the small modules that they share."""
