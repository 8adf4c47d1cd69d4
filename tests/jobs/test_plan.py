"""Plans from a sweep file, and messages about a wrong file."""

import re
from pathlib import Path

import pytest
import yaml

from profiler_job.jobs.contract.studies import STUDIES
from profiler_job.jobs.sweep.plan import DEFAULT_SWEEP, SweepError, load_sweep, select
from profiler_job.jobs.sweep.plan_table import PlanTable
from tests.shipped_sweeps import FILES

DEFAULT = load_sweep(DEFAULT_SWEEP)
SMALLEST = {"name": "x", "size": ["small"], "context_length": [128], "mode": ["forward"]}
ODD = {"d_model": 64, "d_ff": 64, "num_layers": 1, "num_heads": 2}


def test_the_default_sweep_is_60_runs_in_the_order_of_its_axes():
    ids = [run.run_id for run in DEFAULT.runs]
    assert ids == [
        f"{size}-ctx{context_length}-fp32-naive-{mode}"
        for size in ("small", "medium", "large", "xl", "2.7B")
        for context_length in (128, 256, 512, 1024)
        for mode in ("forward", "forward_backward", "train_step")
    ]
    assert len(set(ids)) == 60
    assert {run.batch_size for run in DEFAULT.runs} == {4}
    assert {run.vocab_size for run in DEFAULT.runs} == {10_000}
    assert DEFAULT.protocol.model_dump() == {
        "warmup_steps": 5,
        "measured_steps": 10,
        "processes": 3,
        "seed": 0,
        "profiled_steps": 5,
        "turns": (),
        "rounds": 5,
        "samples": False,
    }


def test_a_run_knows_the_shape_of_its_size():
    run = DEFAULT.runs[-1]
    assert (run.d_model, run.d_ff, run.num_layers, run.num_heads) == (2560, 10240, 32, 32)
    assert run.num_parameters == 3_406_809_600


@pytest.fixture
def load(tmp_path):
    def write(content):
        path = tmp_path / "sweep.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return load_sweep(path)

    return write


def test_precision_and_attention_are_axes(load):
    sweep = load(SMALLEST | {"precision": ["fp32", "tf32", "bf16"], "attention": ["naive", "sdpa"]})
    assert len({run.run_id for run in sweep.runs}) == 6
    assert "small-ctx128-bf16-sdpa-forward" in {run.run_id for run in sweep.runs}


def test_a_repeated_value_is_one_run(load):
    assert len(load(SMALLEST | {"mode": ["forward", "forward"]}).runs) == 1


def test_a_size_that_yaml_reads_as_a_number_is_a_name(load):
    shape = {"d_model": 64, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    sweep = load(SMALLEST | {"size": [7], "custom_sizes": {"7": shape}})
    assert sweep.runs[0].size == "7"


@pytest.mark.parametrize(
    "change, key, allowed",
    [
        ({"size": ["huge"]}, "size", "small, medium, large, xl, 2.7B"),
        ({"size": []}, "size", "at least 1"),
        ({"mode": ["training"]}, "mode.0", "'forward', 'forward_backward' or 'train_step'"),
        ({"precision": ["fp16"]}, "precision.0", "'fp32', 'tf32' or 'bf16'"),
        ({"attention": ["flash"]}, "attention", "exist for precision bf16 only"),
        ({"attention": ["linear"]}, "attention.0", "'naive', 'sdpa', 'flash', 'efficient' or 'cudnn'"),
        ({"context_length": [0]}, "context_length.0", "greater than 0"),
        ({"context_length": 128}, "context_length", "list"),
        ({"batch_size": -1}, "batch_size", "greater than 0"),
        ({"warmup_steps": 1}, "warmup_steps", "at least 2, except with fresh_process"),
        ({"profiled_steps": 2}, "profiled_steps", "0 (no capture) or at least 3"),
        ({"measured_steps": 0}, "measured_steps", "greater than or equal to 1"),
        ({"contextlength": [1]}, "contextlength", "context_length"),
        ({"name": "../up"}, "name", "pattern"),
        ({"name": "-x"}, "name", "pattern"),
        ({"name": "site"}, "name", "any other name"),
        ({"name": "shard-1-of-2"}, "name", "any other ending"),
        ({"name": "mine-shard-10-of-12"}, "name", "any other ending"),
        ({"study": "atention"}, "study", "'attention'"),
        ({"context_length": [True]}, "context_length.0", "should be a number, not True"),
        ({"memory_limit_gib": [False]}, "memory_limit_gib.0", "should be a number, not False"),
        ({"memory_limit_gib": [float("inf")]}, "memory_limit_gib.0", "finite"),
        *(
            ({key: True}, key, "should be a number, not True")
            for key in ("batch_size", "repeats", "warmup_steps", "measured_steps", "profiled_steps")
        ),
        ({"fresh_process": 1}, "fresh_process", "a valid boolean, not 1"),
        ({"calibrate": "on"}, "calibrate", "a valid boolean, not 'on'"),
        ({"context_length": [10_000_001]}, "context_length.0", "less than or equal to 10000000"),
        ({"batch_size": 10**30}, "batch_size", "less than or equal to 1000000"),
        ({"measured_steps": 10**30}, "measured_steps", "less than or equal to 1000000"),
        ({"repeats": 100_001}, "100,001 runs", "at most 100,000 are allowed"),
        ({"repeats": 10**30}, "runs", "at most 100,000 are allowed"),
        ({"custom_sizes": {"odd": ODD | {"num_layers": 10**9}}}, "odd.num_layers", "less than or equal to 1000"),
        ({"custom_sizes": {"odd": ODD | {"d_model": 2**40}}}, "odd.d_model", "less than or equal to 1048576"),
        (
            {"custom_sizes": {"odd": ODD | {"d_model": 2**20, "num_layers": 1000}}},
            "custom_sizes.odd",
            "more than 10,000,000,000,000 parameters",
        ),
        ({"batch_size": 4, "accumulation": [1, 3]}, "accumulation", "4 cannot be cut into 3 equal parts"),
        ({"mode": ["forward"], "accumulation": [2]}, "accumulation", "mode forward has no gradients"),
        (
            {"mode": ["train_step"], "compile": ["cudagraphs"], "accumulation": [2]},
            "accumulation",
            "CUDA graphs write a micro-batch's gradients over",
        ),
        (
            {"mode": ["train_step"], "accumulation": [2], "gpus": [2], "parallel": ["ddp"]},
            "accumulation",
            "is measured on one GPU",
        ),
        ({7: 1}, "7", "string"),
        ({"a\nb": 1}, "a b", "allowed: name, size"),
        ({"custom_sizes": {"odd": {"d_model": 63, "d_ff": 1, "num_layers": 1, "num_heads": 2}}}, "odd", "multiple of"),
        ({"custom_sizes": {"odd": {"d_model": 64, "heads": 2}}}, "custom_sizes.odd.heads", "num_heads"),
        ({"custom_sizes": {"odd-one": {}}}, "custom_sizes.odd-one", "pattern"),
        (
            {"custom_sizes": {"odd": ODD | {"num_layers": True}}},
            "custom_sizes.odd.num_layers",
            "should be a number, not True",
        ),
    ],
)
def test_an_error_names_the_file_the_key_and_what_is_allowed(load, change, key, allowed):
    with pytest.raises(SweepError) as raised:
        load(SMALLEST | change)
    lines = [line for line in str(raised.value).splitlines() if key in line.split("sweep.yaml: ", 1)[1]]
    assert lines, raised.value
    assert any(allowed in line for line in lines), raised.value
    assert all("sweep.yaml: " in line for line in str(raised.value).splitlines())


@pytest.mark.parametrize("key", ["name", "size", "context_length", "mode"])
def test_a_missing_key_is_named(load, key):
    with pytest.raises(SweepError, match=f"sweep.yaml: {key}: not given, and has no default$"):
        load({name: value for name, value in SMALLEST.items() if name != key})


@pytest.mark.parametrize(
    "size, end",
    [
        (ODD | {"d_model": 63}, "must be a multiple of 2 x num_heads = 4, not 63"),
        (ODD | {"d_model": 2**20, "num_layers": 1000}, "choose a smaller d_model, d_ff or num_layers"),
    ],
)
def test_what_is_wrong_among_several_keys_is_said_without_repeating_them_all(load, size, end):
    with pytest.raises(SweepError) as raised:
        load(SMALLEST | {"custom_sizes": {"odd": size}})
    assert str(raised.value).endswith(end)


def test_every_error_is_told_at_once(load):
    with pytest.raises(SweepError) as raised:
        load(SMALLEST | {"mode": ["x"], "batch_size": 0})
    assert len(str(raised.value).splitlines()) == 2


@pytest.mark.parametrize("name", ["my-sweep", "h100-bf16", "a.b_c", "7", "shard-1", "shard-1-of-2-again"])
def test_a_name_may_have_dashes(load, name):
    assert load(SMALLEST | {"name": name}).name == name


@pytest.mark.parametrize("study", ["", *STUDIES])
def test_a_study_is_one_that_a_question_is_about(load, study):
    assert load(SMALLEST | {"study": study}).study == study


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name: caf\xe9\n", "line 1 is not UTF-8 text"),
        (b"# fine\nname: \xff\n", "line 2 is not UTF-8 text"),
        (b"name: a\nsize: [small]\nname: b\n", "name: given twice, first in line 1; keep one of them, in line 3"),
        (b"custom_sizes:\n  a: {d_ff: 1, d_ff: 2}\n", "d_ff: given twice, first in line 2"),
        (b"name: a\n---\nname: b\n", "expected a single document in the stream but found another document, in line 2"),
        (b"a: &a [x, x]\nb: [*a, *a]\n", r"\*a: aliases are not allowed; write the value out, in line 2"),
        (b"a: &a {b: 1}\nc: {<<: *a}\n", r"\*a: aliases are not allowed"),
        (b"size: [xl]\n<<: {size: [small]}\n", r"<<: merging is not allowed; write the keys out, in line 2"),
        (b"#" + b" " * 2**20, "larger than 1 MiB"),
        (b"[" * 100_000, "nested too deeply"),
        (b"name: 2026-13-45", "not valid YAML: month must be in 1..12"),
        (b"repeats: " + b"9" * 5000, "not valid YAML: Exceeds the limit"),
    ],
    ids=lambda value: value[:20] if isinstance(value, bytes) else "",
)
def test_a_file_that_cannot_be_meant_is_one_clear_line(tmp_path, content, said):
    path = tmp_path / "sweep.yaml"
    path.write_bytes(content)
    with pytest.raises(SweepError, match=rf"sweep\.yaml: .*{said}") as raised:
        load_sweep(path)
    assert "\n" not in str(raised.value)


def test_a_long_wrong_value_is_cut(load):
    with pytest.raises(SweepError) as raised:
        load(SMALLEST | {"mode": ["x" * 10_000]})
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("content", ["", "- 1", "just words", "name: [", "name: 'x", "\x00"])
def test_what_is_not_a_sweep_is_one_clear_line(load, content):
    with pytest.raises(SweepError, match=r"sweep\.yaml: (not valid YAML|expected keys)") as raised:
        load(content)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SweepError, match=r"none\.yaml: cannot be read \(No such file.*--sweep"):
        load_sweep(tmp_path / "none.yaml")


def test_only_selects_by_axis_and_repeats_a_key_for_more_values():
    assert len(select(DEFAULT.runs, "size=small")) == 12
    assert len(select(DEFAULT.runs, "size=small,mode=forward")) == 4
    assert len(select(DEFAULT.runs, "size=small,size=2.7B,context_length=512")) == 6
    assert select(DEFAULT.runs, "") == select(DEFAULT.runs, None) == DEFAULT.runs


@pytest.mark.parametrize(
    "only, message",
    [
        ("sise=small", "unknown key 'sise'; allowed: size, context_length, precision, attention, compile"),
        ("size=huge", "no run has this size; this sweep has: small, medium, large, xl, 2.7B"),
        ("precision=bf16", "no run has this precision; this sweep has: fp32"),
        ("size", "no run has this size"),
        ("d_model=768", "unknown key 'd_model'"),
    ],
)
def test_only_says_what_it_could_have_been(only, message):
    with pytest.raises(SweepError, match=re.escape(message)):
        select(DEFAULT.runs, only)


def test_later_axes_are_named_in_a_run_id_where_they_leave_their_default(load):
    change = {
        "compile": ["off", "cudagraphs"],
        "optimizer": ["own", "fused"],
        "memory_limit_gib": [0, 24],
        "repeats": 2,
    }
    run_ids = [run.run_id for run in load(SMALLEST | change).runs]
    assert len(set(run_ids)) == 16
    assert run_ids[0] == load(SMALLEST).runs[0].run_id
    assert run_ids[-1].endswith("-compile_cudagraphs-adamw_fused-limit24-repeat1")


def test_micro_batches_are_cut_from_the_batch_of_a_step(load):
    runs = load(SMALLEST | {"mode": ["train_step"], "batch_size": 8, "accumulation": [1, 4]}).runs
    assert [(run.batch_size, run.accumulation) for run in runs] == [(8, 1), (8, 4)]
    assert runs[1].run_id == f"{runs[0].run_id}-accum4"


def test_a_sweep_without_warm_up_needs_fresh_processes(load):
    assert load(SMALLEST | {"warmup_steps": 0, "fresh_process": True}).runs[0].run_id.endswith("-fresh")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_sweeps_of_the_studies_are_valid(file):
    sweep = load_sweep(file)
    assert sweep.name == file.stem
    assert bool(sweep.study) != file.stem.startswith("cs336_"), "a hand-out asks the questions of the default sweep"
    assert len({run.run_id for run in sweep.runs}) == len(sweep.runs)


def test_two_values_that_would_be_one_run_are_refused(load):
    with pytest.raises(SweepError, match=r"memory_limit_gib: 20\.0000001 and 20\.0000002 are both called limit20"):
        load(SMALLEST | {"memory_limit_gib": [20.0000001, 20.0000002]})
    assert len(load(SMALLEST | {"memory_limit_gib": [20, 20.5]}).runs) == 2


@pytest.mark.parametrize("number", ["010", "-017", "08", "00", "0_7", "1:20", "12:30:45", "1:20.5", "190:20:30"])
@pytest.mark.parametrize("line", ["warmup_steps: {}", "context_length: [128, {}]", "{}: 1", "name: {}"])
def test_numbers_that_yaml_reads_otherwise_than_they_look_are_refused_with_a_line(tmp_path, number, line):
    path = tmp_path / "sweep.yaml"
    path.write_text(f"size: [small]\nmode: [forward]\n{line.format(number)}\n")
    with pytest.raises(SweepError) as error:
        load_sweep(path)
    assert f"{number}: YAML does not read this as it looks" in str(error.value)
    assert str(error.value).endswith("in line 3")


@pytest.mark.parametrize("text", ['"010"', "'1:20'"])
def test_such_a_text_in_quotes_is_a_text(tmp_path, text):
    path = tmp_path / "sweep.yaml"
    path.write_text(f"name: {text}\nsize: [small]\nmode: [forward]\ncontext_length: [0x80]\n")
    try:
        load_sweep(path)
    except SweepError as error:
        assert "YAML does not read" not in str(error)  # a name may be refused for its characters


def test_a_sweep_that_ships_is_found_by_its_name_and_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = load_sweep(Path("tiny"))
    assert tiny.name == "tiny" and len(tiny.runs) == 4 and max(run.num_parameters for run in tiny.runs) < 10e6
    assert load_sweep(Path("cs336_2026")).runs
    with pytest.raises(SweepError, match="--sweep"):
        load_sweep(Path("nothing"))
    Path("tiny").write_text(DEFAULT_SWEEP.read_text())
    assert len(load_sweep(Path("tiny")).runs) == 60


def test_a_plan_wider_than_a_terminal_has_two_lines_a_run(load):
    sweep = load_sweep(Path("tiny"))
    table = PlanTable(sweep.protocol, with_memory=True, with_limits=True, gpu_memory=80)
    for width, lines in ((None, 5), (120, 5), (50, 10)):
        rows = list(table.lines(sweep.runs, width))
        assert len(rows) == lines and (width is None or max(map(len, rows)) <= width)
