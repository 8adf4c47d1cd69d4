"""The studies: questions beyond those of the default sweep, each answered from recordings of sweeps that name it."""

STUDIES = ("again", "attention", "host", "memory", "optimizer", "precision", "warm_up")
