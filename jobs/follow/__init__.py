"""Code that runs inside an unchanged training script; see `follow`."""
