"""Keeps the files that a script had before as they were: variants that take turns train the same weights, and no
checkpoint of these may take the place of a real one. Checkpoints, and what would change a file, are written to a
scratch folder, and read from there by all processes of the script. Nothing that was there is removed or moved. What
libraries write without Python, but for safetensors, goes where the script has it.

Loaded into other people's scripts, as `follow` is.
"""

import builtins
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from stat import S_ISREG
from time import time
from typing import Any

import torch
from torch.optim import Optimizer

from .wrapping import wrap

ENDINGS = (".pt", ".pth", ".ckpt", ".pth.tar")
"""Of names of checkpoints: these are not written to the script's folders at all."""
READING = ("stat", "chmod", "utime", "listxattr", "getxattr", "setxattr")
"""Functions of `os` that `shutil.copy` calls with a file, and those by which a script asks whether there is one."""
WHOLE = (
    ("transformers.trainer", "Trainer", "_save_checkpoint"),
    ("accelerate.accelerator", "Accelerator", "save_state"),
    ("lightning.pytorch.trainer.trainer", "Trainer", "save_checkpoint"),
    ("pytorch_lightning.trainer.trainer", "Trainer", "save_checkpoint"),
)
"""Methods that save folders. They do nothing: half of a folder would be resumed from, and old ones be removed."""
LARGEST_COPY = 2**30
"""Bytes of a file that is copied before it is changed. Data that is only read may be opened so, too, as
`numpy.memmap` does by default."""
PATHS = (str, bytes, os.PathLike)
Call = Callable[..., Any]


class ScratchFiles:
    """folder: for what the script saves; it is made for the first file. own: folders of this program, whose files are
    written as ever."""

    def __init__(self, folder: str, own: Iterable[str]):
        self.folder, self.own = folder, tuple(os.path.join(each, "") for each in own if each)
        self.stat, self.unlink, self.replace, self.symlink = os.stat, os.unlink, os.replace, os.symlink
        self.mkdir, self.began = os.mkdir, time()
        self.left = set[str]()  # folders that the script has removed or moved, and that are still there

    def begin(self) -> None:
        """Wrap what writes and removes files."""
        wrap(torch.serialization, "save", self.save)
        wrap(torch.serialization, "load", self.read)
        torch.save, torch.load = torch.serialization.save, torch.serialization.load
        with suppress(ImportError):
            package = import_module("safetensors")  # before others take its functions from it
            for holder in filter(None, (package, sys.modules.get("safetensors.torch"))):
                wrap(holder, "serialize_file", self.save)
                wrap(holder, "safe_open", self.read)
        wrap(builtins, "open", self.open)
        wrap(os, "open", self.open_descriptor)
        setattr(io, "open", builtins.open)  # noqa: B010 mypy takes both for final
        of_os: dict[str, Call] = {"unlink": self.remove, "remove": self.remove, "mkdir": self.make_folder}
        of_os |= {"rename": self.move, "replace": self.move, "link": self.link, "symlink": self.link}
        for name, around in {**dict.fromkeys(READING, self.read), **of_os, "truncate": self.change}.items():
            plain = getattr(os, name)
            wrap(os, name, around)
            for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
                able.update({getattr(os, name)} if plain in able else ())
        wrap(shutil, "rmtree", self.remove_folder)
        wrap(Optimizer, "__init__", self.make_optimizer)

    def name_copy(self, file: Any) -> str:
        path = os.path.abspath(os.fsdecode(file))
        return os.path.join(self.folder, sha256(os.fsencode(path)).hexdigest())

    def make_copy(self, file: Any) -> str:
        """Return the name of a scratch copy that is to be written."""
        with suppress(FileExistsError):
            self.mkdir(self.folder)
        return self.name_copy(file)

    def find(self, file: Any, options: dict[str, Any]) -> Any:
        """Return the scratch copy of a file if there is one; else what was given, which may also be an open file."""
        if isinstance(file, PATHS) and not any(options.get(name) for name in ("dir_fd", "opener")):
            with suppress(OSError, ValueError):
                self.stat(self.folder)  # until something is saved, that is all
                self.stat(copy := self.name_copy(file))
                return copy
        return file

    def is_old(self, file: Any) -> bool:
        """Return whether a file was there before this process, and not empty, and is the script's."""
        with suppress(OSError, ValueError, TypeError):
            about = self.stat(file)
            if S_ISREG(about.st_mode) and about.st_size and about.st_ctime < self.began:
                return not os.path.abspath(os.fsdecode(file)).startswith(self.own)
        return False

    def keep_folder(self, path: Any) -> bool:
        """Return whether a folder stays, since it holds an old file, and note that it does."""
        is_kept = any(self.is_old(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)
        self.left |= {os.path.abspath(path)} if is_kept else set()
        return is_kept

    def read(self, called: Call, *args: Any, **options: Any) -> Any:
        if args:
            return called(self.find(args[0], options), *args[1:], **options)
        return called(**{name: self.find(value, options) for name, value in options.items()})

    def save(self, called: Call, obj: Any, f: Any, *args: Any, **options: Any) -> Any:
        return called(obj, self.make_copy(f) if isinstance(f, PATHS) else f, *args, **options)

    def open(self, called: Call, file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        kept = self.find(file, options)
        if kept is file and {*mode} & {*"wa+"} and isinstance(file, PATHS) and not options.get("opener"):
            if "r" in mode:
                kept = self.copy_old(file)
            elif self.is_old(file) or os.fsdecode(file).endswith(ENDINGS):
                kept = self.make_copy(file)
        return called(kept, mode, *args, **options)

    def open_descriptor(self, called: Call, path: Any, flags: int, *args: Any, **options: Any) -> int:
        kept = self.find(path, options)
        is_written = flags & (os.O_WRONLY | os.O_RDWR) and options.get("dir_fd") is None
        if kept is path and is_written and self.is_old(path):
            kept = self.make_copy(path) if flags & os.O_TRUNC else self.copy_old(path)
            flags |= os.O_CREAT
        return int(called(kept, flags, *args, **options))

    def change(self, called: Call, path: Any, *args: Any) -> None:
        kept = self.find(path, {})
        called(self.copy_old(path) if kept is path else kept, *args)

    def copy_old(self, file: Any) -> Any:
        """Return the scratch copy of a file that is about to be changed, with what it holds, if it is an old one."""
        if not self.is_old(file) or self.stat(file).st_size > LARGEST_COPY:
            return file
        shutil.copyfile(file, copy := self.make_copy(file))
        return copy

    def remove(self, called: Call, path: Any, **options: Any) -> None:
        kept = self.find(path, options)
        if kept is not path or options.get("dir_fd") is not None or not self.is_old(path):
            called(kept, **options)

    def move(self, called: Call, src: Any, dst: Any, **options: Any) -> None:
        kept = self.find(src, options)
        if kept is not src:
            self.replace(kept, self.make_copy(dst))
        elif options or not (self.is_old(src) or self.is_old(dst)):
            if not self.keep_folder(src):
                called(src, dst, **options)
        else:
            shutil.copyfile(src, self.make_copy(dst))
            self.remove(self.unlink, src)

    def link(self, called: Call, src: Any, dst: Any, *args: Any, **options: Any) -> None:
        folder = os.path.dirname(os.path.abspath(os.fsdecode(dst)))
        target = os.path.join(folder, os.fsdecode(src)) if called.__name__ == "symlink" else src
        kept = self.find(target, options)
        if kept is target and not self.is_old(dst):
            called(src, dst, *args, **options)
            return
        with suppress(FileNotFoundError):
            self.unlink(self.make_copy(dst))
        self.symlink(os.path.abspath(kept), self.make_copy(dst))

    def remove_folder(self, called: Call, path: Any, *args: Any, **options: Any) -> None:
        if not self.keep_folder(path):
            called(path, *args, **options)

    def make_folder(self, called: Call, path: Any, *args: Any, **options: Any) -> None:
        if os.path.abspath(path) not in self.left:
            called(path, *args, **options)

    def make_optimizer(self, called: Call, made: Optimizer, *args: Any, **options: Any) -> None:
        """Whoever makes an optimizer has imported what trains with it."""
        for module, holder, name in WHOLE:
            if module in sys.modules:
                wrap(getattr(sys.modules[module], holder), name, lambda called, *args, **options: None)
        called(made, *args, **options)
