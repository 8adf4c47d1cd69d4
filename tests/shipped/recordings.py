"""Where the recordings of site/data are: each in the folder of its study."""

from pathlib import Path

from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.recording.allowed import OF_CAPTURES
from profiler_job.analysis.site.combine import find_studies_by_turns, join_recordings
from profiler_job.jobs.contract.layout import MANIFEST
from profiler_job.jobs.contract.studies import LADDER, find_recordings

DATA = Path(__file__).parents[2] / "site" / "data"
RECORDINGS = find_recordings(DATA)
"""The folders of all recordings, by name."""
MANIFESTS = [folder / MANIFEST for folder in RECORDINGS]
WITH_RATES = "changes_1"
"""The recording that measured the peak rates of its GPU."""
BY_TURNS = ("changes_1", "changes_2", "changes_3")
"""The recordings of one change and of several, by turns."""

_BY_NAME = {folder.name: folder for folder in RECORDINGS}


def locate(name: str) -> Path:
    """The folder of a recording by its name; one that does not exist if none is called so."""
    return _BY_NAME.get(name, DATA / "none" / name)


def load_study_by_turns(study: str) -> store.Recording:
    """Load the runs that answer the question of a study that has no recording of its own."""
    return find_studies_by_turns({LADDER: join_recordings([store.load(locate(name)) for name in BY_TURNS])})[study]


def load_timed(folder: Path) -> store.Recording:
    """Load a recording without the tables of what nsys recorded, which take longest."""
    tables = {
        name: store.empty(name) if name in OF_CAPTURES else store.load_table(folder, name)
        for name in table_schema.TABLES
    }
    return store.Recording(manifest=store.read_manifest(folder), **tables)
