"""Runs scripts in copies of one Python that has imported torch. A new Python takes 1.7 s of a processor for a small
script, most of them for this import; a copy takes 0.3 s. A script finds what it would find as `python script.py`: its
arguments and environment, the `sitecustomize` of its PYTHONPATH, and an import of torch that passes through all
finders. What depends on how Python starts is tested with a new one."""

import builtins
import gc
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType


class TorchCopies:
    """The Python that is copied. It ends with the context."""

    def __enter__(self) -> "TorchCopies":
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *_) -> None:
        self.process.communicate()

    def run(
        self, script: Path, *arguments: str | Path, environment: Mapping[str, str] = os.environ
    ) -> subprocess.CompletedProcess:
        """Run a script in its folder to its end. While it runs, files next to it hold what it prints."""
        printed = [script.with_suffix(suffix) for suffix in (".out", ".err")]
        command = [str(script), *map(str, arguments)]
        request = {"command": command, "environment": dict(environment), "printed": list(map(str, printed))}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        code = int(self.process.stdout.readline())
        done = subprocess.CompletedProcess(command, code, *(file.read_text() for file in printed))
        for file in printed:
            file.unlink()
        return done


class ImportedTorch:
    """Finds the torch that is already imported."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        loader = ImportedTorch(self.torch)
        return spec_from_file_location(
            name, self.torch.__file__, loader=loader, submodule_search_locations=list(self.torch.__path__)
        )

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.torch

    def exec_module(self, module: ModuleType) -> None:
        pass


def wait_for_script() -> dict:
    """Return what to run, in each copy anew. The Python that is copied never returns."""
    requests, codes = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for request in requests:
        if not (copy := os.fork()):
            return json.loads(request)
        _, status = os.waitpid(copy, 0)
        print(os.waitstatus_to_exitcode(status), file=codes, flush=True)
    sys.exit()


def run_script(command: list[str], environment: dict[str, str], printed: list[str]) -> None:
    """Do as Python does with a script."""
    script = Path(command[0])
    os.chdir(script.parent)
    for number, file in enumerate([os.devnull, *printed]):
        opened = os.open(file, os.O_RDONLY if not number else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [script.name, *command[1:]]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path[:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.meta_path.insert(0, ImportedTorch(sys.modules.pop("torch")))
    if spec := PathFinder.find_spec("sitecustomize"):
        sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["sitecustomize"])
    sys.path.insert(0, str(script.parent))
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main).update(__file__=str(script), __builtins__=builtins)
    exec(compile(script.read_bytes(), script, "exec"), vars(main))


if __name__ == "__main__":
    import torch  # noqa: F401

    gc.freeze()  # else each copy would take its time to free what was imported
    run_script(**wait_for_script())
