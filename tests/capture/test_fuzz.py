"""Corrupted, truncated and mutated exports, in every format: no traceback, no warning, no wrong success, and none
takes more than 10 s of processor time or 1 GiB.

A wrong success is a summary whose totals are not what a plain reading of the same damaged file gives.
"""

import csv
import gzip
import io
import json
import random
import re
import resource
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profiler_job.analysis.insight.gpu_limit import OF_PARTS
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.show import FORMATS, show

from .pages import check_inert
from .test_summary import _random_capture

pytestmark = pytest.mark.filterwarnings("error")

DATA = Path(__file__).parents[1] / "data"
BATCHES, LONG_BATCHES, BATCH = 10, 3, 20
PROCESSOR_S, GIB = 10, 1 << 30
TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "num_kernels",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "num_api_calls",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "num_graph_executions",
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Sound exports to damage: a real one and random small ones, as SQLite and as parquetdir."""
    folder = tmp_path_factory.mktemp("originals")
    real = folder / "real.sqlite"
    with gzip.open(DATA / "graph_node.sqlite.gz") as packed, real.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    files = [real, *(_capture(seed).sqlite(folder / f"{seed}.sqlite") for seed in range(3))]
    return files, [_capture(seed).parquetdir(folder / f"{seed}") for seed in range(2)]


def _capture(seed):
    """A random capture with a row in every table that the reader looks for."""
    export = _random_capture(seed)
    for process in (1, 2):
        for device in (0, 1):
            export.gpu(number=2 * process + device, process=process, device=device)
        export.memset(1500, 1510, export.call(1400, 1410, process=process, name="cudaMemsetAsync"), process=process)
        export.sync(1600, 1650, export.call(1590, 1660, process=process, name="cudaDeviceSynchronize"), process=process)
        export.graph(1700, 1800, export.call(1690, 1695, process=process, name="cudaGraphLaunch"), process=process)
    export.push("forward", 2000, 2100)
    export.push("backward", 2200, 2300)
    export.launch(2010)
    export.launch(2210, thread=2)
    return export


@pytest.fixture(autouse=True)
def limited():
    """A file that takes more than PROCESSOR_S, or more than a GiB beyond what this process has, fails the test."""

    def stop(*_):
        raise AssertionError(f"no answer after {PROCESSOR_S} s of work")

    before, memory = signal.signal(signal.SIGPROF, stop), resource.getrlimit(resource.RLIMIT_DATA)
    kib = re.search(r"VmData:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]
    resource.setrlimit(resource.RLIMIT_DATA, (int(kib) * 1024 + GIB, memory[1]))
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)
    resource.setrlimit(resource.RLIMIT_DATA, memory)


@pytest.fixture(autouse=True)
def summarised_once(monkeypatch):
    """The four formats print one summary of a file, which takes longer than all else; the file is read for each."""
    summaries = {}

    def once(capture, *, with_moments, **options):
        key = capture.path, with_moments
        if key not in summaries:
            summaries[key] = summarise(capture, with_moments=with_moments, **options)
        return summaries[key]

    monkeypatch.setattr("profiler_job.analysis.insight.summary.summarise", once)


# --------------------------------------------------------------------------------------------------------------- damage


def _truncate(rng, path):
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def _flip_bytes(rng, path):
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 5, 50, 500])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)


def _zero_block(rng, path):
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    size = rng.choice([16, 512, 4096, 20000])
    data[at : at + size] = bytes(min(size, len(data) - at))
    path.write_bytes(data)


def _swap_blocks(rng, path):
    data = path.read_bytes()
    blocks = [data[i : i + 4096] for i in range(0, len(data), 4096)]
    one, other = rng.randrange(len(blocks)), rng.randrange(len(blocks))
    blocks[one], blocks[other] = blocks[other], blocks[one]
    path.write_bytes(b"".join(blocks))


def _append(rng, path):
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(10_000)))


_VALUES = [
    "NULL",
    "0",
    "-1",
    "1",
    "7",
    "2147483648",
    "-9223372036854775808",
    "9223372036854775807",
    "4611686018427387904",
]
_VALUES += [
    "'text'",
    "x'00ff'",
    "'\x1b[31m|\n<b>`#'",
    "1.5",
    "1e300",
    "9e18",
    "''",
    "start",
    "end",
    "seeded()",
    "seeded() - 4611686018427387904",
    "seeded() % 1000",
]


def _sql(rng, path):
    """Change the content in a way that SQLite itself finds sound."""
    with closing(sqlite3.connect(path)) as connection:
        connection.create_function("seeded", 0, lambda: rng.getrandbits(62))
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        names = [name for name in names if not name.startswith("ENUM_")]
        for _ in range(rng.choice([1, 1, 2, 4])):
            table = rng.choice(names)
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            if not columns:
                continue
            column = rng.choice(columns)
            some = f"WHERE seeded() % {rng.choice([1, 2, 20])} = 0"
            statement = rng.choice(
                [
                    f'UPDATE "{table}" SET "{column}" = {rng.choice(_VALUES)} {some}',
                    f'UPDATE "{table}" SET "{column}" = {rng.choice(_VALUES)} {some}',
                    f'UPDATE "{table}" SET "{column}" = "{rng.choice(columns)}" {some}',
                    f'DELETE FROM "{table}" {some}',
                    f'INSERT INTO "{table}" SELECT * FROM "{table}" {some}',
                    f'DROP TABLE "{table}"',
                    f'ALTER TABLE "{table}" RENAME TO "x_{table}"',
                    f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "x_{column}"',
                    f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
                ]
            )
            try:
                connection.execute(statement)
            except sqlite3.Error:
                continue  # a NOT NULL column, a column that another statement took away
        connection.commit()


SQLITE_DAMAGE = [_truncate, _flip_bytes, _zero_block, _swap_blocks, _append, _sql, _sql, _sql, _sql]


def _parquet(rng, folder):
    file = rng.choice(sorted(folder.glob("*.parquet")))
    kind = rng.choice(["bytes", "remove", "columns", "rows", "texts", "nulls"])
    if kind == "remove":
        file.unlink()
        return
    if kind == "bytes":
        rng.choice([_truncate, _flip_bytes, _zero_block])(rng, file)
        return
    table = pq.read_table(file)
    column = rng.choice(table.column_names)
    place = table.column_names.index(column)
    if kind == "columns":
        table = table.drop_columns(column)
    elif kind == "rows":
        table = table.slice(rng.randrange(table.num_rows))
    elif kind == "texts":
        table = table.set_column(place, column, pa.array([str(rng.random())] * table.num_rows))
    else:
        table = table.set_column(place, column, pa.nulls(table.num_rows, table.schema.field(column).type))
    pq.write_table(table, file)


# ---------------------------------------------------------------------------------------------------------------- check


def _plain_totals(path: Path) -> dict:
    """Rows of each table, and kernel time, read in the plainest way."""
    totals = {}
    if path.is_dir():
        for table, key in TABLES.items():
            file = path / f"{table}.parquet"
            rows = pq.read_table(file, columns=["start", "end"]).to_pylist() if file.exists() else []
            totals[key] = len(rows)
            if table == "CUPTI_ACTIVITY_KIND_KERNEL":
                totals["kernel_ns"] = sum(row["end"] - row["start"] for row in rows)
        return totals
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table, key in TABLES.items():
            rows = connection.execute(f'SELECT "start", "end" FROM "{table}"').fetchall() if table in tables else []
            totals[key] = len(rows)
            if table == "CUPTI_ACTIVITY_KIND_KERNEL":
                totals["kernel_ns"] = sum(int(end) - int(start) for start, end in rows)
    return totals


def _check(path: Path) -> bool:
    """Show `path` in every format, and as a page; True for summaries that are right, False for one clear line."""
    verdicts = set()
    printed = {}
    page = path.with_name(f"{path.name}.html")
    for form in (*(form for form in FORMATS if form != "speedscope"), "html"):  # which needs Python samples
        out, err = [], []
        signal.setitimer(signal.ITIMER_PROF, PROCESSOR_S)
        html = page if form == "html" else None
        code = show([path], "text" if html else form, 0, out.append, err.append, html=html)
        signal.setitimer(signal.ITIMER_PROF, 0)
        verdicts.add((code, *err))
        printed[form] = "\n".join(out)
    assert len(verdicts) == 1, "the formats agree"
    if code == 65:
        assert not page.exists()
        assert out == []
        assert len(err) == 1
        assert "\n" not in err[0]
        assert err[0].startswith(f"error: {path}: ")
        assert "; " in err[0], "says what is wrong, and what to do"
        assert "could not be summarised" not in err[0]
        return False
    assert (code, err) == (0, [])
    check_inert(page.read_text())
    _check_controls(printed)
    found = json.loads(printed["json"], parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    _check_csv(printed["csv"], found)
    expected = _plain_totals(path)
    assert {key: found["capture"][key] for key in expected} == expected
    assert sum(row["total_ns"] for row in found["kernels"]) == expected["kernel_ns"]
    assert sum(row["calls"] for row in found["families"]) == expected["num_kernels"]
    for row in found["verdict"]:
        parts = {name: value for name, value in row.items() if name not in ("gpu", "elapsed_ns", *OF_PARTS)}
        assert min(parts.values()) >= 0
        assert row["elapsed_ns"] == found["capture"]["events_ns"] == sum(parts.values())
    shares = [share for share in found["coverage"].values() if share is not None]
    assert not shares or sum(shares) == pytest.approx(1)
    return True


def _check_controls(printed: dict[str, str]) -> None:
    """Nothing in a profile drives the terminal or makes a line of its own."""
    for form in ("text", "md", "csv"):
        assert all(c.isprintable() or c == "\n" for c in printed[form]), form
    starts = (
        "#",
        "-",
        "|",
        "...",
        "A range has ",
        "Times of this capture",
        "Predicted gains are of the time",
        "Times on the host are sums",
    )
    for line in printed["md"].splitlines():
        assert not line or line.startswith(starts), line


def _check_csv(text: str, found: dict) -> None:
    """The CSV holds as many values as the JSON, but for sentences."""
    left_out = ("format_version", "sentences")
    sections = [rows if isinstance(rows, list) else [rows] for key, rows in found.items() if key not in left_out]
    assert len(list(csv.DictReader(io.StringIO(text)))) == sum(len(row) for rows in sections for row in rows)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(batch, marks=pytest.mark.long if batch < LONG_BATCHES else pytest.mark.nightly)
        for batch in range(BATCHES)
    ],
)
def test_damaged_exports_give_a_right_summary_or_one_clear_line(originals, tmp_path, batch):
    files, folders = originals
    answers = []
    for number in range(BATCH):
        rng = random.Random(batch * BATCH + number)
        if rng.random() < 0.2:
            path = tmp_path / f"damaged_{number}"
            shutil.copytree(rng.choice(folders), path)
            _parquet(rng, path)
        else:
            path = tmp_path / f"damaged_{number}.sqlite"
            shutil.copyfile(rng.choice(files), path)
            rng.choice(SQLITE_DAMAGE)(rng, path)
        answers.append(_check(path))
    assert len(answers) == BATCH


@pytest.mark.long
def test_sound_exports_are_summarised(originals):
    files, folders = originals
    assert all(_check(path) for path in [*files, *folders])
