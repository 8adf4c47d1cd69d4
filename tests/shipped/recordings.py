"""Where the recordings of site/data are: each in the folder of its study."""

from pathlib import Path

from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.recording.allowed import OF_CAPTURES
from profiler_job.jobs.contract.layout import MANIFEST
from profiler_job.jobs.contract.studies import find_recordings

DATA = Path(__file__).parents[2] / "site" / "data"
RECORDINGS = find_recordings(DATA)
"""The folders of all recordings, by name."""
MANIFESTS = [folder / MANIFEST for folder in RECORDINGS]

_BY_NAME = {folder.name: folder for folder in RECORDINGS}


def locate(name: str) -> Path:
    """The folder of a recording by its name; one that does not exist if none is called so."""
    return _BY_NAME.get(name, DATA / "none" / name)


def load_timed(folder: Path) -> store.Recording:
    """Load a recording without the tables of what nsys recorded, which take longest."""
    tables = {
        name: store.empty(name) if name in OF_CAPTURES else store.load_table(folder, name)
        for name in table_schema.TABLES
    }
    return store.Recording(manifest=store.read_manifest(folder), **tables)
