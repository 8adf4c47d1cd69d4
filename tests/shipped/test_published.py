"""What is shipped is what `publish-data` would write, and nothing in it looks private."""

import pytest

from profiler_job.analysis.recording import allowed, store
from profiler_job.analysis.recording.scan import scan_public
from tests.doses import sampled
from tests.shipped.recordings import DATA, RECORDINGS


@pytest.mark.nightly
@pytest.mark.parametrize("folder", sampled(RECORDINGS, 12), ids=lambda folder: folder.name)
def test_the_shipped_recordings_lose_nothing(tmp_path, folder):
    manifest = store.read_manifest(folder)
    assert allowed.rewrite(folder, tmp_path / "new", manifest) == []
    written = store.read_manifest(tmp_path / "new")
    changing = {"tables", "digest"}
    assert {key: written[key] for key in written if key not in changing} == {
        key: manifest[key] for key in manifest if key not in changing
    }
    for file in folder.glob("*.parquet"):
        new = store.read_table(file.stem, tmp_path / "new" / file.name)
        assert new.equals(store.read_table(file.stem, file)), file.name


@pytest.mark.long
def test_nothing_of_the_shipped_recordings_looks_private():
    assert scan_public(DATA) == []
