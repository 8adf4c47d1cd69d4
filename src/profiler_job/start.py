"""The entry of the program, installed or as `python -m profiler_job`.

Python answers Ctrl-C by a traceback. Until the program can, Ctrl-C ends it as it ends programs that are not Python's.
"""

import faulthandler
import signal
import sys


def start() -> None:
    """Run the program. A Ctrl-C that is ignored, as under nohup, stays so."""
    if sys.stderr:
        faulthandler.enable()  # a crash in native code says where: on a rented GPU it may not come again
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from profiler_job.__main__ import app

    app()
