"""Text in the columns of a terminal: broken, shortened, wrapped."""

import shutil

import pandas as pd
from rich.cells import cell_len, chop_cells, set_cell_size

WIDTH, LEAST_WIDTH = 120, 60
"""Number of columns if the terminal does not give it, and the least number."""


def is_text(frame: pd.DataFrame, column: str) -> bool:
    return not pd.api.types.is_numeric_dtype(frame[column]) and any(isinstance(v, str) for v in frame[column])


def break_text(text: str, width: int) -> list[str]:
    """Break `text` into lines of at most `width` cells, between words, and within words that are longer."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        for piece in chop_cells(word, width) or [""]:
            joined = f"{lines[-1]} {piece}" if lines[-1] else piece
            if cell_len(joined) <= width:
                lines[-1] = joined
            else:
                lines.append(piece)
    return lines


def shorten_text(text: str, width: int) -> str:
    """Shorten a text to at most `width` columns; both ends stay, because names often differ only there."""
    if cell_len(text) <= width:
        return text
    end = text[-(width // 2) :]
    return set_cell_size(text, max(0, width - 1 - cell_len(end))) + "…" + end


def measure_terminal() -> int:
    """Columns of the terminal."""
    return max(shutil.get_terminal_size((WIDTH, 24)).columns, LEAST_WIDTH)


def wrap_text(text: str, width: int, indent: str = "") -> list[str]:
    """Break `text` into lines of at most `width` cells, each after `indent`, further ones a little more."""
    first, *more = break_text(text, width - len(indent) - 2)
    return [indent + first, *(f"{indent}  {line}" for line in more)]
