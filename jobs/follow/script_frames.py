"""Which frame of a Python stack is of the script's own files.

Imported inside the script (see `sitecustomize`).
"""

import os
import re
import sysconfig
from types import FrameType

HERE = os.path.dirname(__file__)
LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}, "<")
PACKAGES = ("/site-packages/", "/dist-packages/")
GENERATED = re.compile(r"(?:^|[/\\])c[a-z2-7]{50,}\.py$")
"""A file that Inductor wrote."""


def find_own_frame(frame: FrameType | None) -> FrameType | None:
    """Find the innermost frame of the script's own files; None if there is none."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def is_own(file: str) -> bool:
    """Whether a file is of the script's own."""
    is_library = file.startswith(LIBRARIES) or any(folder in file for folder in PACKAGES)
    return not (is_library or GENERATED.search(file) is not None or file.startswith(HERE))
