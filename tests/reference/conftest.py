import os
from pathlib import Path

import pytest


@pytest.fixture
def shared_profiles() -> Path:
    """Folder of the real exports: environment variable SHARED_PROFILES, or shared/profiles next to the repository."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "profiles"
    folder = Path(os.environ.get("SHARED_PROFILES", beside))
    if not folder.is_dir():
        pytest.skip("the real exports are not there: set SHARED_PROFILES to their folder")
    return folder
