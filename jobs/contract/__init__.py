"""Shared by both sides: axes of runs, names of ranges and files, messages. Imports neither torch nor pandas."""
