"""Run a script as `python SCRIPT ARGS...` does, with other texts of some of its files.

    python edited_script.py TEXTS SCRIPT ARGS...

TEXTS: a JSON file, {whole path: text}. Nothing else of this folder is imported here.
"""

import json
import linecache
import os
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType

Texts = dict[str, str]


def edit_modules(texts: Texts) -> None:
    """Have Python import modules with these texts."""
    read = SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        text = texts.get(os.path.realpath(loader.path))
        return read(loader, name) if text is None else compile(text, loader.path, "exec", dont_inherit=True)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as opened:
        texts: Texts = json.load(opened)
    del sys.argv[:2]
    file = os.path.abspath(sys.argv[0])
    edit_modules(texts)
    for path, new in texts.items():  # for what reads the code of a function, as Triton does
        linecache.cache[path] = (len(new), None, new.splitlines(keepends=True), path)
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(file))
    text = texts.get(os.path.realpath(file))
    if text is None:
        with open(file, "rb") as source:
            code = compile(source.read(), file, "exec", dont_inherit=True)
    else:
        code = compile(text, file, "exec", dont_inherit=True)
    sys.modules["__main__"] = module = ModuleType("__main__")
    module.__file__ = file
    exec(code, module.__dict__)


if __name__ == "__main__":
    main()
