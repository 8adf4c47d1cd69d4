"""Python runs this before any script that is started with this folder on PYTHONPATH. It has `install` loaded as soon as
the script imports torch, and leaves everything else as it would be: this folder is taken off the path, so that none of
its names hides the script's own, and a `sitecustomize` of the user's own runs as ever."""

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
PLAN = os.environ.get("PROFILER_JOB_FOLLOW")
"""What is to be done, as it is when Python starts: a script may clear its environment. A child may be without it."""

PACKAGE = "profiler_job_injected"
"""Name of this folder inside the script: no module of the script has it."""


def run_own_sitecustomize() -> None:
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


class AfterTorch:
    """Finds torch as everyone else does, and has the script followed once it is imported. Some only ask whether it can
    be found, as `import datasets` does, and import it later or not at all."""

    is_asking = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch" or self.is_asking:
            return None
        self.is_asking = True
        try:
            spec = find_spec(name)
        finally:
            self.is_asking = False
        if spec is not None and spec.loader is not None:
            import_torch = spec.loader.exec_module

            def import_and_follow(module: ModuleType) -> None:
                import_torch(module)
                sys.meta_path.remove(self)
                follow()

            spec.loader.exec_module = import_and_follow  # type: ignore[method-assign]
        return spec


def follow() -> None:
    package = ModuleSpec(PACKAGE, None, is_package=True)
    package.submodule_search_locations = [str(HERE)]
    sys.modules[PACKAGE] = module_from_spec(package)
    import_module(f"{PACKAGE}.install").install_plan(PLAN)


if PLAN is not None:
    sys.meta_path.insert(0, AfterTorch())  # before what follows, which may import torch, or raise
run_own_sitecustomize()
