"""Schedules runs over GPUs and keeps what they measured."""
