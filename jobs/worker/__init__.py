"""The measured process. It imports torch; nobody imports it, it is spawned."""
