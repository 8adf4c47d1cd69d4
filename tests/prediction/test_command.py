"""`profiler-job predict` on a recording that is made up, and on what is none."""

import hashlib

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.prediction import ledger, rates, script_rates
from profiler_job.analysis.recording import store, table_schema
from tests import synthetic
from tests.prediction.test_scripts import script  # noqa: F401


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    recording = synthetic.recording(sizes=("small",), contexts=(128,))
    folder = tmp_path_factory.mktemp("recording") / "made-up"
    tables = {name: getattr(recording, name) for name in table_schema.TABLES}
    store.write(folder, tables, {key: value for key, value in recording.manifest.items() if key != "tables"})
    return folder


@pytest.fixture(scope="module")
def unaligned(script, tmp_path_factory):  # noqa: F811
    """A script in TF32 whose vocabulary of 50257 tokens is not padded."""
    recording = script("gpt2")
    tables = {name: getattr(recording, name) for name in table_schema.TABLES}
    tables["runs"] = tables["runs"].astype({"precision": str}).assign(precision="tf32")
    folder = tmp_path_factory.mktemp("unaligned") / "gpt2"
    store.write(folder, tables, {key: value for key, value in recording.manifest.items() if key != "tables"})
    return folder


def predict(*arguments):
    done = CliRunner().invoke(app, ["predict", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_each_run_is_said_with_each_set(folder):
    code, said = predict(folder, "--run", "mode=train_step", "--change", "fused_adamw", "--change", "bf16")
    assert code == 0
    assert "train_step: " in said and "ms a step, measured" in said
    assert "  fused_adamw: " in said
    assert "  bf16: no prediction, " in said


def test_without_sets_the_usual_ones_are_said(folder):
    code, said = predict(folder, "--run", "mode=train_step")
    assert code == 0
    assert "  bf16,fused_attention,fused_adamw: " in said


def test_a_ledger_names_the_rates_of_each_model_that_it_asked(folder, tmp_path):
    """The message named the changes of scripts alone, even if one of the set was of both kinds."""
    digest_of = {}
    for sets in (["tf32"], ["compile"], ["tf32", "compile"]):
        file = tmp_path / f"{'-'.join(sets)}.json"
        chosen = [argument for name in sets for argument in ("--change", name)]
        assert predict(folder, "--run", "mode=train_step", *chosen, "--ledger", file)[0] == 0
        digest_of["+".join(sets)] = ledger.read(file).rates
    of_both = rates.FILE.read_bytes() + script_rates.FILE.read_bytes()
    assert digest_of["tf32"] == hashlib.sha256(rates.FILE.read_bytes()).hexdigest()[:12]
    assert digest_of["compile"] == hashlib.sha256(script_rates.FILE.read_bytes()).hexdigest()[:12]
    assert digest_of["tf32+compile"] == hashlib.sha256(of_both).hexdigest()[:12]


def test_padding_is_said_in_the_precision_of_its_set(unaligned):
    """It was looked for in TF32 as well, where nothing covers it, and no set was said at all."""
    code, said = predict(unaligned, "--change", "bf16,padding", "--change", "padding", "--change", "fused_adamw")
    assert code == 0
    assert "  bf16,padding: " in said and "bf16,padding: no prediction" not in said
    assert "  padding: no prediction, how much faster aligned matmuls are is known of BF16 alone" in said
    assert "  fused_adamw: " in said


def test_a_set_that_no_model_tells_of_leaves_the_others(folder):
    code, said = predict(folder, "--run", "mode=train_step", "--change", "padding", "--change", "fused_adamw")
    assert code == 0
    assert "  padding: no prediction, no model says what padded dimensions would give in a sweep" in said
    assert "  fused_adamw: " in said and "fused_adamw: no prediction" not in said


def test_a_ledger_is_kept_and_never_written_again(folder, tmp_path):
    file = tmp_path / "a.json"
    assert predict(folder, "--change", "fused_adamw", "--ledger", file)[0] == 0
    made = ledger.read(file)
    assert made.recording["name"] == "synthetic"
    assert {entry.mode for entry in made.predictions} == {"forward", "forward_backward", "train_step"}
    code, said = predict(folder, "--change", "fused_adamw", "--ledger", file)
    assert (code, said.count("\n")) == (2, 1)
    assert "is there already" in said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--change", "faster"], "no change is called faster: choose of tf32, bf16"),
        (["--change", "tf32,bf16"], "tf32 and bf16 are one choice"),
        (["--change", ""], "no change is called"),
        (["--run", "size=huge"], "has no such finished run with size=huge"),
        (["--run", "huge"], "chooses no runs"),
    ],
)
def test_what_cannot_be_asked_is_one_line(folder, arguments, reason):
    code, said = predict(folder, *arguments)
    assert code == 2
    assert said.startswith("error: ") and reason in said and said.count("\n") == 1


def test_what_is_no_recording_is_one_line(tmp_path):
    code, said = predict(tmp_path / "none")
    assert code == 2
    assert said.startswith("error: ") and said.count("\n") == 1
