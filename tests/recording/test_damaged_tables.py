"""A recording whose tables fit their manifest and make no sense is refused with a line by what reads it."""

import hashlib
import json
import math
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.recording import store
from tests.frozen import ONE_GPU


@pytest.fixture
def recording(tmp_path):
    return shutil.copytree(ONE_GPU, tmp_path / "rec")


def _replace(folder, name, change):
    """Change a table, and its entry in the manifest."""
    file = folder / f"{name}.parquet"
    table = change(pq.read_table(file))
    pq.write_table(table, file)
    content, manifest = file.read_bytes(), json.loads((folder / "manifest.json").read_text())
    facts = {"rows": table.num_rows, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["tables"][name] |= facts
    manifest.pop("digest", None)
    store.write_manifest(folder, manifest)


def _set_text(table):
    place = table.column_names.index("context_length")
    return table.set_column(place, "context_length", pa.array(["=cmd|x"] * table.num_rows))


def _set_null(name):
    """Return a change that takes the values of a column away from the first row."""

    def change(table):
        values = table[name].to_pylist()
        column = pa.array([None, *values[1:]], table[name].type)
        return table.set_column(table.column_names.index(name), name, column)

    return change


def _set_mode(table):
    return table.set_column(table.column_names.index("mode"), "mode", pa.array(["[a](b)"] * table.num_rows))


def _set_no_batch(table):
    return table.set_column(table.column_names.index("batch_size"), "batch_size", pa.array([0] * table.num_rows))


def _set_nulls(table):
    place = table.column_names.index("num_parameters")
    return table.set_column(place, "num_parameters", pa.nulls(table.num_rows, pa.float64()))


def _set_word(table):
    place = table.column_names.index("energy_mj")
    return table.set_column(place, "energy_mj", pa.array(["CON"] * table.num_rows))


def _set_status(table):
    return table.set_column(table.column_names.index("status"), "status", pa.array([-math.inf] * table.num_rows))


CHANGES = {
    "a status that no run has": ("runs", _set_status),
    "a finished run without warm-up steps": ("runs", _set_null("warmup_steps")),
    "a finished run without a context length": ("runs", _set_null("context_length")),
    "a word for an energy": ("processes", _set_word),
    "runs twice": ("runs", lambda table: pa.concat_tables([table, table])),
    "text for numbers": ("runs", _set_text),
    "a mode that no run has": ("runs", _set_mode),
    "a batch of no sequences": ("runs", _set_no_batch),
    "no numbers of parameters": ("runs", _set_nulls),
    "no steps": ("steps", lambda table: table.slice(0, 0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_such_a_recording_is_refused_with_a_line(recording, change):
    _replace(recording, *CHANGES[change])
    for command in (["verify", recording], ["compare", ONE_GPU, recording], ["history", recording]):
        done = CliRunner().invoke(app, [*map(str, command)])
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert "mistake of profiler-job" not in done.output, done.output
        assert done.exit_code != 70
        assert change in ("no steps", "no numbers of parameters") or done.exit_code != 0


@pytest.mark.long
def test_a_script_whose_batch_is_not_known_is_read(recording):
    """A GAN trains two models in a step."""

    def change(table):
        script = pa.array(["script"] * table.num_rows)
        return _set_no_batch(table.set_column(table.column_names.index("workload"), "workload", script))

    _replace(recording, "runs", change)
    assert (store.load(recording).runs["batch_size"] == 0).all()
    done = CliRunner().invoke(app, ["answers", str(recording), "--out", str(recording.parent / "answers")])
    assert done.exit_code == 0, done.output
