"""From a sweep file to runs, shards and predicted times."""
