"""Where the real exports are: the environment variable SHARED_PROFILES, or beside the repository."""

import os
from pathlib import Path

import pytest

SHARED_PROFILES = Path(
    os.environ.get("SHARED_PROFILES", Path(__file__).resolve().parents[2].parent / "shared" / "profiles")
)

needs_profiles = pytest.mark.skipif(
    not SHARED_PROFILES.is_dir(), reason="the real exports are not there: set SHARED_PROFILES to their folder"
)
