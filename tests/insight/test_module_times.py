"""The kernel time of a step by module, as `show` and `profile` print it."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.answers.script_findings import format_findings
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.module_times import describe_largest, describe_modules, list_modules
from profiler_job.analysis.insight.step_parts import sum_drawn_modules
from profiler_job.analysis.insight.summary import summarise
from profiler_job.analysis.pages.script_answers import answer_script
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.jobs.contract.layout import CAPTURE, RECORD, SCRIPT, SWEEP
from tests import packed
from tests.capture.nsys_files import Export

NORM, GELU, MATMUL = "triton_poi_fused_norm_0", "triton_poi_fused_gelu_1", "nvjet_tst_64x8_64x16_1x2_h_bz_TNT"
FUSED = f"{NORM}|h.0/norm=75|h.0/attn/qkv=25", f"{GELU}|h.1/mlp=100", "extern_kernels.mm|head=100"
SCRIPTS = Path(__file__).parents[1] / "data" / "h200_scripts"


def make_capture(tmp_path, follows=True, graph=FUSED):
    """Two steps of a compiled model, of 3 kernels of 21 ns each, and one that is followed."""
    export = Export()
    for at, prefix in ((0, ""), (1000, ""), *[(2000, "modules:")] * follows):
        export.span(f"{prefix}step", at, at + 900)
        export.push(f"{prefix}forward", at + 5, at + 800)
        if prefix:
            export.push("GPT (compiled)", at + 8, at + 700)
        for place, name in enumerate((NORM, GELU, MATMUL)):
            export.launch(at + 10 + 2 * place, start=at + 40 * place + 20, end=at + 40 * place + 41, name=name)
    if follows and graph:
        export.push("modules:graph 0 forward GPT", 2810, 2880)
        for place, launch in enumerate(graph):
            export.push(launch, 2820 + 10 * place, 2825 + 10 * place)
    return export.sqlite(tmp_path / "a.sqlite")


def show(*arguments):
    done = CliRunner().invoke(app, ["show", "--no-cache", *map(str, arguments)], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.stdout


def test_ranges_in_which_calls_of_graphs_are_named_are_not_listed(tmp_path):
    export = Export()
    export.span("step", 0, 900)
    for at, name in ((10, "modules:call 3"), (100, "modules:call 0 broken"), (200, "modules:sync 2"), (300, "own")):
        export.push(name, at, at + 50)
        export.launch(at + 5, start=at + 20, end=at + 40, name=NORM)
    rows = summarise(read(export.sqlite(tmp_path / "a.sqlite"))).sections["ranges"]
    assert set(rows["name"]) == {"step", "own"}


def test_kernels_of_a_compiled_model_are_by_layer_and_each_counts_once(tmp_path):
    rows = summarise(read(make_capture(tmp_path))).sections["modules"]
    assert dict(zip(rows["name"], rows["total_ns"])) == {
        "GPT/h.*/mlp": 21,
        "GPT/head": 21,
        "GPT/h.*/norm": 16,
        "GPT/h.*/attn/qkv": 5,
    }
    assert rows["forward_ns"].tolist() == rows["total_ns"].tolist() and rows["share"].sum() == pytest.approx(1)
    [head] = rows[rows["name"] == "GPT/head"].to_dict("records")
    assert (head["family"], head["kernel"]) == ("gemm", MATMUL)


def test_show_prints_the_layers_and_says_which_takes_most(tmp_path):
    printed = " ".join(show(make_capture(tmp_path)).split())
    assert "Modules: kernel time of one step" in printed and "GPT/h.*/attn/qkv" in printed
    assert "GPT/h.*/mlp takes most, 33.3% of the kernel time; most of that is Triton" in printed
    assert "in its innermost module; the time of a fused one is divided among its modules" in printed
    assert "torch.compile made" not in printed


def make_table(**shares):
    """The section `modules`. shares: part of the kernel time, by the name of a module, with __ for a slash."""
    names = [name.replace("__", "/") for name in shares]
    kernels = ["triton_red_fused__log_softmax_nll_loss_forward_0" if name == "GPT" else MATMUL for name in names]
    return pd.DataFrame({"name": names, "share": list(shares.values()), "family": "gemm", "kernel": kernels})


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            make_table(GPT__head=0.5, GPT=0.3, GPT__mlp=0.2),
            [
                "GPT/head takes most, 50.0% of the kernel time; most of that is GEMM",
                "GPT itself, without the modules inside it, takes 30.0%; most of that is GEMM; its largest kernel "
                "computes a loss: triton_red_fused__log_softmax_nll_loss_forward_0",
            ],
        ),
        (
            make_table(GPT__mlp=0.6, GPT__mlp__fc=0.35, GPT=0.05),
            [
                "GPT/mlp itself, without the modules inside it, takes most, 60.0% of the kernel time; most of that is "
                "GEMM"
            ],
        ),
        (
            make_table(**{"(loss)": 0.6, "GPT/head": 0.4}),
            [
                "GPT/head takes most of the modules, 40.0% of the kernel time; most of that is GEMM",
                "The loss, which is outside of all modules, takes more: 60.0%",
            ],
        ),
        (
            make_table(**{"GPT/(inputs of a CUDA graph)": 0.6, "GPT": 0.4}),
            ["GPT takes most of the modules, 40.0% of the kernel time; most of that is GEMM"],
        ),
    ],
)
def test_a_module_that_has_others_inside_and_takes_much_itself_is_described(table, expected):
    assert describe_largest(table) == expected


def test_an_optimizer_that_takes_more_than_each_module_is_said():
    said = describe_modules(make_table(**{"(all parameters)": 0.6, "GPT/head": 0.4}))
    assert said[0].startswith("GPT/head takes most of the modules, 40.0%")
    assert said[-1].endswith("in brackets, as (all parameters): updates of many at once, 60.0%")


def test_a_capture_that_does_not_show_modules_says_why_and_what_to_do(tmp_path):
    alone, without_graphs = tmp_path / "alone", tmp_path / "without"
    for folder in (alone, without_graphs):
        folder.mkdir()
    printed = " ".join(show(make_capture(alone, follows=False)).split())
    assert "Modules: kernel time" not in printed and "`profiler-job profile" in printed
    missing = json.loads(show(make_capture(without_graphs, graph=()), "--format", "json"))
    assert [row["name"] for row in missing["modules"]] == ["GPT (compiled)"]
    [row] = [row for row in missing["missing"] if "torch.compile" in row["what"]]
    assert row["consequence"].startswith("its kernels are in the line of the whole compiled module")


def test_a_part_of_a_capture_has_the_modules_that_it_has_in_the_whole(tmp_path):
    found = json.loads(show(make_capture(tmp_path), "--between", "0,0.9us", "--format", "json"))
    assert {row["name"] for row in found["modules"]} >= {"GPT/h.*/mlp", "GPT/head"}


@pytest.mark.parametrize("name", ["gpt2", "nano"])
def test_show_of_what_profile_left_has_the_modules_that_profile_prints(tmp_path, name):
    shutil.copytree(SCRIPTS / name, tmp_path / name)
    packed.unpack_all(tmp_path / name)
    ingest(tmp_path / name, tmp_path / "recording", emit=print)
    answers = answer_script(store.load(tmp_path / "recording"))
    assert not answers.modules["name"].str.contains("compiled").any() and len(answers.modules) > 5
    shown = json.loads(show(tmp_path / name, "--format", "json"))["modules"]
    columns = ["name", "total_ns", "forward_ns", "backward_ns", "family"]
    assert [[row[column] for column in columns] for row in shown] == answers.modules[columns].values.tolist()
    printed = format_findings(answers, 80)
    assert "takes most" in printed and max(map(len, printed.splitlines())) <= 80


def test_the_results_of_one_run_are_shown_whole(tmp_path):
    run = tmp_path / "train" / "train"
    run.mkdir(parents=True)
    make_capture(run).rename(run / CAPTURE)
    (run / "samples.sqlite").write_bytes((run / CAPTURE).read_bytes())
    (run / RECORD).write_text("{}")
    (tmp_path / "train" / SWEEP).write_text(json.dumps({"sweep": "train", SCRIPT: True, "runs": ["train"]}))
    for folder in (tmp_path / "train", run):
        assert re.search(r"Modules: kernel time", show(folder))


def test_the_module_that_costs_most_is_the_one_that_is_drawn_largest():
    """A page of a GPT named mlp/c_fc with 12% of kernel time, GPT itself with 16%, and drew mlp with 27%."""
    times = {"GPT": 16, "GPT/h.*/mlp/c_fc": 13, "GPT/h.*/mlp/c_proj": 13, "GPT/h.*/attn/c_attn": 12, "(loss)": 30}
    rows = [("a", "forward", name, "gemm_kernel", "gemm", 1, ns * 1e6) for name, ns in times.items()]
    rows.append(("a", "optimizer", "GPT/h.*/mlp/c_fc", "adam", "optimizer", 1, 90e6))
    columns = ["run_id", "phase", "module", "kernel_name", "family", "calls", "time_ns"]
    totals = pd.DataFrame(rows, columns=columns)
    drawn = sum_drawn_modules(totals)
    assert (drawn["module"].iloc[0], drawn["total_ns"].iloc[0]) == ("mlp", 26e6)
    assert drawn["step_share"].iloc[0] == 26 / 174
    lines = describe_largest(list_modules(totals), drawn)
    assert lines[0].startswith("mlp takes most of the modules, 14.9%")
    assert sum("takes most" in line for line in lines) == 1
