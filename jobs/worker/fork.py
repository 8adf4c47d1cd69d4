"""Fresh processes without paying for imports again: a process that has imported what workers need, and nothing more,
forks one for each address that it is given. It has no CUDA context, so a child makes its own, as it does its allocator,
its cuBLAS handles and its random numbers. Needs the standard library alone.
"""

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection


def fork_workers(control: Connection, serve: Callable[[str], None]) -> None:
    """For each address that comes over `control`, fork a process that serves there; answer with its exit code when it
    has ended. Returns, in the parent, when the connection closes."""
    with suppress(EOFError, OSError):
        while True:
            address = control.recv()
            child = os.fork()
            if child == 0:
                control.close()
                _serve_and_exit(serve, address)
            control.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _serve_and_exit(serve: Callable[[str], None], address: str) -> None:
    """End without the clean-up of an interpreter, which is the parent's."""
    code = 1
    try:
        serve(address)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
