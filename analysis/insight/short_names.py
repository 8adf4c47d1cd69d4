"""Long names in little room: different names stay different, and what tells them apart is what is kept."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from rich.cells import cell_len

GAP = "\N{HORIZONTAL ELLIPSIS}"
_DECORATION = re.compile(
    r"^void |\boperator ?\(\)\(\) const::|<unnamed>::|\(anonymous namespace\)::"
    r"|\b(?:at::native::|at::cuda::|at::|c10::|std::|cutlass::|binary_internal::)"
    r"|\((?:unsigned )?(?:int|long|char|bool)\)(?=\d)|\(at::TensorIterator(?:Base)? &(?:, const [\w:]+ &)?\)"
    r"|(?<=>)\([^()]*\)$"
)
"""Parts that thousands of kernel names contain and that do not show what the kernel does."""
_TELLING = re.compile(
    r"[nt]{2,3}|[NT]{3}|\w*\d+x\d+\w*|split|bf16|f16|tf32|BFloat16|Half|double|flash|[fb]prop|[fb]wd|(For|Back)ward",
    re.ASCII,
)
"""Layout, tile and type of GEMMs, and the direction of a pass."""
_IDLE = re.compile(r"[A-Z]?\d{1,3}|lambda|instance|array|void|const|Calculator|\w?", re.ASCII)
"""Numbers of templates and words of the compiler."""
_RUN = re.compile(r"([\W_]*)([^\W_]*)")
_CAMEL = re.compile(r"[A-Z]?[^A-Z]+|[A-Z]+(?![^A-Z])|[A-Z]")
_WORD = 16
"""Longest part of a name that is kept or left out as one."""
_MOST_READ = 2_000
"""Of a longer name only the ends are compared: names that do not differ there get numbers."""

Parts = list[tuple[str, str]]
"""Pairs of the text before a word, and the word."""


def shorten(names: Iterable[str], width: int) -> dict[str, str]:
    """Shorten each of `names` to at most `width` cells of a terminal (at least 16), different names differently.

    Names that fit stay as they are. A longer name keeps its beginning and the words that few of the others have; an
    ellipsis replaces what is left out between them. Names that would still read the same get a number at their end.
    """
    width = max(width, 16)
    names = list(dict.fromkeys(names))
    short = {name: name for name in names if len(name) <= _MOST_READ and _count_cells(name) <= width}
    long = {name: _keep_ends(name) for name in names if name not in short}
    plain = {name: _DECORATION.sub("", text) for name, text in long.items()}
    short |= _keep_words(plain, width)
    for texts in (plain, long):
        for alike in _find_alike(short):
            short |= _keep_words({name: texts[name] for name in alike if name in texts}, width, rarity=10)
    used = set(short.values())
    for alike in _find_alike(short):
        number = 2
        for name in sorted(alike, key=lambda name: short[name] != name)[1:]:
            while (text := _cut(short[name], width, f"{GAP}~{number}")) in used:
                number += 1
            short[name] = text
            used.add(text)
    return {name: short[name] for name in names}


def _find_alike(short: dict[str, str]) -> list[list[str]]:
    groups = defaultdict(list)
    for name, text in short.items():
        groups[text].append(name)
    return [names for names in groups.values() if len(names) > 1]


def _count_cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _keep_ends(name: str) -> str:
    half = _MOST_READ // 2
    return name if len(name) <= _MOST_READ else f"{name[:half]} ... {name[-half:]}"


def _cut(text: str, width: int, end: str = GAP) -> str:
    """Return the beginning of `text`, and `end`, in `width` cells."""
    text = text[:width]
    while text and _count_cells(text) + _count_cells(end) > width:
        text = text[:-1]
    return text.removesuffix(GAP) + end


def _keep_words(texts: dict[str, str], width: int, rarity: float = 1) -> dict[str, str]:
    """Return the text of each name in `width` cells, with the words that distinguish it from the others; `rarity`: how
    much it counts that few others have a word."""
    parts = {name: _split_parts(text) for name, text in texts.items()}
    common = Counter(word for of_name in parts.values() for word in set(_number_words(of_name)))
    return {
        name: texts[name]
        if _count_cells(texts[name]) <= width
        else _fit(of_name, _rate_parts(of_name, common, len(parts), rarity), width)
        for name, of_name in parts.items()
    }


def _split_parts(text: str) -> Parts:
    parts: Parts = []
    for before, run in _RUN.findall(text):
        words = [run] if any(c.isdigit() for c in run) else _CAMEL.findall(run)
        pieces = [word[at : at + _WORD] for word in words for at in range(0, len(word), _WORD)]
        parts += zip([before] + [""] * len(pieces), pieces or [""])
    return parts


def _number_words(parts: Parts) -> list[tuple[str, int]]:
    """Return each word, and how often it came before: names may differ in how often they repeat something."""
    seen: Counter[str] = Counter()
    counted = []
    for _, word in parts:
        counted.append((word, seen[word]))
        seen[word] += 1
    return counted


def _rate_parts(parts: Parts, common: Counter[tuple[str, int]], num_names: int, rarity: float) -> list[float]:
    return [
        rarity * math.log(num_names / common[word])
        + bool(_TELLING.fullmatch(word[0]))
        - bool(_IDLE.fullmatch(word[0]))
        - position / 1000
        for position, word in enumerate(_number_words(parts))
    ]


def _fit(parts: Parts, worth: Sequence[float], width: int) -> str:
    """Choose the first word and the others that are worth most, as many as fit; the last part is always there, it is
    empty."""
    last = len(parts) - 1
    before = [_count_cells(text) for text, _ in parts]
    kept = [position in (0, last) for position in range(len(parts))]
    used = before[0] + _count_cells(parts[0][1]) + 1
    for position in sorted(range(1, last), key=lambda position: -worth[position]):
        follows, leads = kept[position - 1], kept[position + 1]
        more = _count_cells(parts[position][1]) - 1
        more += (before[position] if follows else 1) + (before[position + 1] if leads else 1)
        if used + more <= width:
            used += more
            kept[position] = True
    text = _join_kept(parts, kept)
    return text if _count_cells(text) <= width else _cut(text, width)


def _join_kept(parts: Sequence[tuple[str, str]], kept: Sequence[bool]) -> str:
    texts = []
    for position, (before, word) in enumerate(parts):
        if kept[position]:
            texts += [before if position == 0 or kept[position - 1] else GAP, word]
    return "".join(texts)
