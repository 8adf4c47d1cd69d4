"""What both sides share: the words of runs, ranges and results. Imports neither torch nor pandas."""
