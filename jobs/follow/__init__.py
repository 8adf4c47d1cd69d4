"""What runs inside a training script that knows nothing of this program; see `follow`."""
