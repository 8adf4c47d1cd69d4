"""Writes the README of a folder of published recordings: what each is, its GPU, and the page it is for.

python -m profiler_job.analysis.site.data_readme site/data
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from profiler_job.analysis.pages import benchmarks, predictions
from profiler_job.analysis.pages.questions import ALL_QUESTIONS
from profiler_job.analysis.prediction import ledger
from profiler_job.analysis.recording import store
from profiler_job.analysis.render.text import inline
from profiler_job.analysis.site.combine import BY_TURNS
from profiler_job.jobs.contract.outputs import check_file, write_file
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.studies import LADDER, LOSSES, STUDIES, find_study_folder

NAME = "README.md"
BENCHMARKS = "benchmarks"
ADVICE = "give another --data, or move it away"
WRITTEN_BY = "Written by `profiler-job publish-data`"

_WHAT = {
    "": "The default sweep: FP32 with nothing fused.",
    "accumulation": "A batch split into micro-batches.",
    "again": "The runs of the default sweep, recorded a second time.",
    "attention": "Eager against fused attention.",
    "bf16": "Steps in BF16, with fused attention and fused AdamW.",
    "generation": "A script that generates text: prefill and decode steps.",
    "gpus": "One GPU against several.",
    "host": "Steps with and without `torch.compile`, each next to its base on one machine.",
    "losses": "The loss after three training steps with and without each change. No times are compared.",
    "memory": "What fits: peak memory and out of memory.",
    "optimizer": "The reference AdamW against fused and other forms.",
    "precision": "FP32, TF32 and BF16.",
    "prediction": "Changes on top of each other, and alone.",
    "trained": "Steps as people train, eager and compiled by turns.",
    "warm_up": "The first steps of a process.",
}
"""By study."""


def write_readme(data: Path) -> Path:
    """Write the README of the recordings in `data` and return its path. Raises RecordingError and TargetError."""
    file = data / NAME
    write_file(file, describe_recordings(data), is_readme, advice=ADVICE)
    return file


def check_readme(data: Path) -> None:
    """Raise TargetError if a README that somebody else wrote is there."""
    check_file(data / NAME, is_readme, advice=ADVICE)


def is_readme(file: Path) -> bool:
    """Whether a file is such a README."""
    return WRITTEN_BY in file.read_text(encoding="utf-8", errors="replace")


def describe_recordings(data: Path) -> str:
    """The text of the README. Raises RecordingError."""
    lines = [
        "# Recordings",
        "",
        f"{WRITTEN_BY}: do not edit. Each study has a folder of its recordings. A recording is"
        " a folder with one Parquet file for each table that has rows, and `manifest.json`. The page"
        " *Data* of the site explains each column. The study of a recording decides which pages show it.",
    ]
    recordings = store.recordings_in(data)
    manifests = {folder: store.read_manifest(folder) for folder in recordings}
    for study in ("", *STUDIES):
        folders = [folder for folder in recordings if manifests[folder].get("study", "") == study]
        if folders:
            lines += ["", f"## {find_study_folder(study)}", "", f"{_WHAT[study]} For {_pages_of(study)}.", ""]
            lines += _table(data, {folder: manifests[folder] for folder in folders})
    if (data / ledger.FOLDER).is_dir():
        lines += [
            "",
            f"## {ledger.FOLDER}",
            "",
            "Predictions of two fitted predictors that are gone, each file written before the runs that test it were"
            f" measured, and what was measured then (`{ledger.MEASURED_FILE}`). For *{predictions.TITLE}*.",
        ]
    if (data / BENCHMARKS).is_dir():
        lines += ["", f"## {BENCHMARKS}", "", f"Times of this project's own programs. For *{benchmarks.TITLE}*."]
    return "\n".join(lines) + "\n"


def _pages_of(study: str) -> str:
    """The titles of the pages of a study; the home page shows those of all."""
    shown = {LOSSES: (LADDER,), LADDER: (LADDER, *BY_TURNS)}.get(study, (study,))
    titles = [question.title for question in ALL_QUESTIONS.values() if (question.study or "") in shown]
    return ", ".join(f"*{title}*" for title in titles) or "the home page"


def _table(data: Path, manifests: dict[Path, dict[str, Any]]) -> Iterator[str]:
    yield "| recording | sweep | GPU | runs | recorded | KiB |"
    yield "| --- | --- | --- | ---: | --- | ---: |"
    for folder, manifest in manifests.items():
        size = sum(table["bytes"] for table in manifest.get("tables", {}).values())
        cells: Iterable[object] = (
            f"[{folder.name}]({folder.relative_to(data).as_posix()})",
            inline(make_printable(manifest.get("sweep", ""))),
            inline(make_printable(manifest.get("gpu", ""))),
            len(manifest.get("runs", ())),
            _days(str(manifest.get("recorded_from", "")), str(manifest.get("recorded_to", ""))),
            f"{size / 1024:,.0f}",
        )
        yield "| " + " | ".join(map(str, cells)) + " |"


def _days(begin: str, end: str) -> str:
    """The dates of two times, ISO 8601; one if they are of one day."""
    days = [time.partition("T")[0] for time in (begin, end) if time]
    return " to ".join(dict.fromkeys(days))


if __name__ == "__main__":
    print(write_readme(Path(sys.argv[1])))
