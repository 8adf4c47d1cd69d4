"""The beginning and the end of long texts: logs and the output of programs."""

import os
from pathlib import Path

from profiler_job.jobs.contract.integrity import create


class Excerpt:
    """Collects bytes and keeps the first and the last `most` of them."""

    def __init__(self, most: int):
        self.most, self.num_bytes = most, 0
        self._head, self._tail = bytearray(), bytearray()

    def add(self, chunk: bytes) -> None:
        self.num_bytes += len(chunk)
        room = self.most - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 2 * self.most:  # not each time: it moves what is kept
            del self._tail[: -self.most]

    @property
    def is_cut(self) -> bool:
        return self.num_bytes > 2 * self.most

    @property
    def text(self) -> str:
        """Kept text. If bytes were cut, it consists of whole lines, and a line in the middle gives the number of
        bytes."""
        if not self.is_cut:
            return bytes(self._head + self._tail).decode(errors="replace")
        # A part of a line could be what follows the name of a secret, and no longer look like one.
        head = bytes(self._head).rpartition(b"\n")[0]
        tail = bytes(self._tail[-self.most :]).partition(b"\n")[2]
        cut = f"[{self.num_bytes - len(head) - len(tail)} bytes were cut here]".encode()
        return b"\n".join([*([head] if head else []), cut, tail]).decode(errors="replace")


def shorten(text: str, most: int) -> str:
    """Return `text`, or its first and last `most` bytes if it is longer."""
    excerpt = Excerpt(most)
    excerpt.add(text.encode())
    return excerpt.text


def read_excerpt(file: Path, most: int) -> str:
    """Return the text of a file of any size, shortened by `Excerpt`. Raises OSError."""
    excerpt = Excerpt(most)
    with open(file, "rb") as opened:
        size = os.fstat(opened.fileno()).st_size
        excerpt.add(opened.read(most))
        if size > 2 * most:
            excerpt.num_bytes += opened.seek(size - most) - most
        excerpt.add(opened.read(most))
    return excerpt.text


def trim(file: Path, most: int) -> None:
    """Cut a file of more than twice `most` bytes to its beginning and end, if it exists. Raises OSError."""
    if file.is_file() and file.stat().st_size > 2 * most:
        text = read_excerpt(file, most)
        draft = file.with_name(f"{file.name}.draft")
        with create(draft) as opened:
            opened.write(text)
        os.replace(draft, file)
