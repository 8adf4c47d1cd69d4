"""Text that Markdown, HTML, spreadsheets and terminals show as it is."""

import re

from profiler_job.jobs.contract.printable import make_printable


def escape_markdown(text: str) -> str:
    """Markdown and HTML that would change what is seen, made plain."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]()#+!|~$-])", r"\\\1", text)


def escape_csv_cell(value: object) -> object:
    """Return a value without characters that could drive a terminal, or a spreadsheet that takes it for a formula;
    values of a list side by side."""
    if isinstance(value, dict):
        value = [f"{name}={escape_csv_cell(part)}" for name, part in value.items()]
    if isinstance(value, list):
        value = " ".join(map(str, value))
    if isinstance(value, str):
        text = make_printable(value)
        return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text
    return "" if value is None else value
