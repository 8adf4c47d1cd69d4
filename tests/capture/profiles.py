"""Where the real nsys exports lie that some tests compare with; a test that needs one that is absent skips, and says
so."""

import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
PROFILES = Path(os.environ.get("SHARED_PROFILES", _ROOT.parent / "shared" / "profiles"))
NAMES = ("train", "train_threads", "train_tf32", "train_bf16_sdpa", "forward_whole", "graph", "graph_node")


def profile(name: str) -> Path:
    """Path of a real export, or a skipped test."""
    path = PROFILES / f"{name}.sqlite"
    if not path.is_file():
        pytest.skip(f"no real export {path.name}: set SHARED_PROFILES to the folder that holds it")
    return path


def nsys_csv(name: str, report: str) -> Path:
    """Path of what `nsys stats --report REPORT --format csv` printed for a real export, or a skipped test."""
    path = PROFILES / "nsys_stats" / name / f"{report}.csv"
    if not path.is_file():
        pytest.skip(f"nsys printed no {report} for {name}")
    return path
