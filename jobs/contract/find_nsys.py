"""Find the nsys of this machine: where `profiler-job install-nsys` put it, on PATH, or in NVIDIA's packages."""

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

OTHER_PLACES = (
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/local/cuda*/nsight-systems*/bin/nsys",
    # Nsight Compute carries a whole nsys for its own use.
    "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
    "/usr/local/cuda*/nsight-compute*/host/target-linux-*/nsys",
)
"""Places of nsys in NVIDIA's packages, as patterns below the root of the file system, the best first."""

HOW_TO_INSTALL = "`profiler-job install-nsys` installs it, without root, too"
"""Advice in every message about a missing nsys."""
NSYS_MISSING = f"nsys, the command line of NVIDIA Nsight Systems, is not on this machine: {HOW_TO_INSTALL}"


def own_folder() -> Path:
    """Return the folder that `profiler-job install-nsys` installs into: one of the user, where no root is needed."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "profiler-job" / "nsys"


def find_nsys(root: Path = Path("/")) -> Path | None:
    """Return the path of nsys: of `install-nsys`, whose user wanted another, else from PATH, else the newest of
    NVIDIA's packages. root: of the file system; tests give another."""
    if is_program(own := own_folder() / "bin" / "nsys"):
        return own
    if on_path := shutil.which("nsys"):
        return Path(on_path)
    return next(find_elsewhere(root), None)


def find_elsewhere(root: Path = Path("/"), places: Sequence[str] = OTHER_PLACES) -> Iterator[Path]:
    """Yield each nsys that NVIDIA's packages left off PATH: place by place, newest version first."""
    for pattern in places:
        yield from filter(is_program, sorted(root.glob(pattern.lstrip("/")), key=version_key, reverse=True))


def version_key(path: Path) -> list[tuple[int, ...]]:
    """Return the numbers of a path, to sort versions by: 2025.10 is newer than 2025.9."""
    return [tuple(map(int, re.findall(r"\d+", part))) for part in path.parts]


def is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def add_nsys_to_path() -> None:
    """Add the folder of nsys to PATH when another comes first there, or none, for this process and all that it starts.
    Without any nsys, nothing changes."""
    nsys, on_path = find_nsys(), shutil.which("nsys")
    if nsys is None or on_path == str(nsys):
        return
    if on_path:
        os.environ["PATH"] = os.pathsep.join([str(nsys.parent), os.environ["PATH"]])
        return
    # The nsys of Nsight Compute looks for what makes its reports on PATH.
    importers = [importer.parent for importer in sorted(nsys.parent.parent.glob("*/QdstrmImporter"))]
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(nsys.parent), *map(str, importers)])
