"""The command `answers` in tests, and what it wrote."""

from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.answers.five_answers import LETTERS


def run(*arguments):
    done = CliRunner().invoke(app, ["answers", *map(str, arguments)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def read_pages(folder):
    return {letter: (folder / f"{letter}.md").read_text(encoding="utf-8") for letter in LETTERS}


def read_table(page):
    lines = [line for line in page.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
