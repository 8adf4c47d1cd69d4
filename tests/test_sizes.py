"""What is tracked stays small: everyone who clones the project downloads it."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LARGEST_MIB = 40
"""MiB of all tracked files together."""


def test_tracked_files_together_are_small():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no checkout of git")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    sizes = {file: file.lstat().st_size for file in files if file.exists() or file.is_symlink()}
    largest = ", ".join(str(file.relative_to(ROOT)) for file in sorted(sizes, key=lambda file: -sizes[file])[:5])
    assert sum(sizes.values()) <= LARGEST_MIB * 2**20, f"the largest: {largest}"
