"""The picture that a shared link shows: a page's title and what it found, as PNG."""

import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import vl_convert as vlc
from numpy.typing import NDArray

WIDTH, HEIGHT = 800, 420
MARGIN = 54
BAR = 10
"""Width of the coloured bar at the left."""
INK, ACCENT, PAPER = (0x14, 0x25, 0x2B), (0x0B, 0x6E, 0x69), (0xFF, 0xFF, 0xFF)
SHADES = 3
"""Paper, between them, ink: enough for the edges of letters. With the bar's that is 2 bits a pixel, 7 kB a card; 16
colours are twice that."""
IN_ACCENT = SHADES
SPACE = 0.34
"""Between words, in heights of a letter: about as wide as fonts have it."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"

Pixels = NDArray[np.uint8]


class Card(NamedTuple):
    """What a card says: the title, the main figure in larger letters, the words, and at the bottom where it is from."""

    title: str
    figure: str
    words: str
    below: str


class _Form(NamedTuple):
    """How a text is set: pixels of a letter and from line to line, lines at most."""

    size: int
    step: int
    most: int
    weight: str


_TITLE = _Form(36, 45, 3, "bold")
_FIGURE = _Form(52, 66, 1, "bold")
_WORDS = _Form(23, 32, 5, "normal")
_BELOW = _Form(17, 24, 1, "normal")


def draw(card: Card) -> bytes:
    """PNG of WIDTH x HEIGHT with as much of the words as fits."""
    ink = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    bottom = HEIGHT - MARGIN // 2 - _BELOW.step
    y = MARGIN - _TITLE.step // 4
    for text, form in ((card.title, _TITLE), (card.figure, _FIGURE), (card.words, _WORDS)):
        most = min(form.most, (bottom - y) // form.step)
        y = _set_text(ink, text, form, y, most) + form.step // 3 if text else y
    _set_text(ink, card.below, _BELOW, bottom, 1)
    shades = (ink.astype(np.uint16) * (SHADES - 1) + 127) // 255
    shades[:, :BAR] = IN_ACCENT
    return _png(shades.astype(np.uint8))


def _set_text(ink: Pixels, text: str, form: _Form, y: int, most: int) -> int:
    """Set the text from `y` on in at most so many lines, the last ending in an ellipsis where there is more; gives
    where it ends."""
    room = WIDTH - 2 * MARGIN
    lines = [*_lines(text, form, room)]
    if len(lines) > most > 0:
        last = lines[most - 1]
        while last and _width([*last, "…"], form) > room:
            last.pop()
        last.append("…")
    for line in lines[: max(most, 0)]:
        x = MARGIN
        for word in line:
            letters = _letters(word, form)[:, : WIDTH - x]
            ink[y : y + form.step, x : x + letters.shape[1]] = letters
            x += letters.shape[1] + _space(form)
        y += form.step
    return y


def _lines(text: str, form: _Form, room: int) -> Iterator[list[str]]:
    line: list[str] = []
    for word in text.split():
        if line and _width([*line, word], form) > room:
            yield line
            line = []
        line.append(word)
    if line:
        yield line


def _width(words: Sequence[str], form: _Form) -> int:
    return int(sum(_letters(word, form).shape[1] for word in words)) + _space(form) * (len(words) - 1)


def _space(form: _Form) -> int:
    return round(SPACE * form.size)


@cache
def _letters(word: str, form: _Form) -> Pixels:
    """How much ink a word has, pixel by pixel, from its first letter's edge to its last's. To draw words is most of the
    work, and cards share most of them: together they take a fifth of the time of cards drawn one by one."""
    word = "".join(letter for letter in word if letter.isprintable())
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{min((len(word) + 2) * form.size, WIDTH)}"'
        f' height="{form.step}"><rect width="100%" height="100%" fill="#fff"/><text x="{form.size // 2}"'
        f' y="{round(0.78 * form.step)}" font-family="sans-serif" font-size="{form.size}"'
        f' font-weight="{form.weight}">{escape(word)}</text></svg>'
    )
    ink = 255 - _first_channel(vlc.svg_to_png(svg))
    used = np.flatnonzero(ink.any(axis=0))
    return ink[:, used[0] : used[-1] + 1] if len(used) else ink[:, :0]


def _first_channel(png: bytes) -> Pixels:
    """Pixels of an RGBA picture of 8 bits. Raises ValueError where its lines are filtered as the renderer does not."""
    width, height = struct.unpack_from(">II", png, 16)
    packed, at = b"", len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        if png[at + 4 : at + 8] == b"IDAT":
            packed += png[at + 8 : at + 8 + length]
        at += length + 12
    lines = np.frombuffer(zlib.decompress(packed), dtype=np.uint8).reshape(height, 1 + 4 * width)
    if (lines[:, 0] > 1).any():
        raise ValueError("a picture with lines that are filtered by others")
    values = lines[:, 1::4]
    return np.where(lines[:, :1] == 1, np.cumsum(values, axis=1, dtype=np.uint8), values)  # 1: less what is to the left


def _png(shades: Pixels) -> bytes:
    """Of numbers of a palette: 2 bits a pixel."""
    ramp = np.linspace(PAPER, INK, SHADES).round().astype(np.uint8).tobytes()
    lines = np.zeros((HEIGHT, 1 + WIDTH // 4), dtype=np.uint8)  # each begins with its filter, none
    for place in range(4):
        lines[:, 1:] |= shades[:, place::4] << (6 - 2 * place)
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 2, 3, 0, 0, 0)
    pixels = zlib.compress(lines.tobytes(), 9)
    chunks = ((b"IHDR", head), (b"PLTE", ramp + bytes(ACCENT)), (b"IDAT", pixels), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
