"""Plans of sweeps: runs, shards and predicted times from a sweep file."""
