"""Definitions that pages use: tables from tables."""
