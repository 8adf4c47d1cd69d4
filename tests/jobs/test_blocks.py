"""Several blocks in a sweep file: what they share, how they are chosen, and how an error names one."""

import json

import pytest
import yaml

from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ingest
from profiler_job.analysis.recording.merge import merge
from profiler_job.jobs.sweep.plan import SweepError, load_sweep, select_runs
from profiler_job.jobs.sweep.shards import Shard, select_shard_runs
from tests.jobs.conftest import TINY, Session, jobs

SHAPE = {"d_model": 64, "d_ff": 64, "num_layers": 1, "num_heads": 2}
SHARED = {"name": "x", "size": ["small"], "mode": ["forward"], "processes": 1}
SHORT = {"name": "short", "context_length": [128]}
LONG = {"name": "long", "context_length": [512, 1024], "batch_size": 8}


@pytest.fixture
def load(tmp_path):
    """load(*blocks, **top): the sweep of a file with these blocks."""

    def write(*blocks, **top):
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump(SHARED | top | {"blocks": list(blocks)}))
        return load_sweep(path)

    return write


def test_a_block_takes_from_the_top_what_it_does_not_give_itself(load):
    sweep = load(SHORT, LONG | {"mode": ["train_step"]}, precision=["bf16"])
    assert [(run.run_id, run.batch_size) for run in sweep.runs] == [
        ("small-ctx128-bf16-naive-forward", 4),
        ("small-ctx512-bf16-naive-train_step-batch8", 8),
        ("small-ctx1024-bf16-naive-train_step-batch8", 8),
    ]


def test_a_size_at_the_top_is_for_every_block(load):
    sweep = load(SHORT, LONG, size=[7], custom_sizes={"7": SHAPE})
    assert {run.size for run in sweep.runs} == {"7"} and {run.d_model for run in sweep.runs} == {64}


def test_a_block_of_hugging_face_takes_no_size_from_the_top(load, tmp_path):
    (tmp_path / "gpt2.json").write_text(json.dumps({"model_type": "gpt2"}))
    gpt2 = {"name": "gpt2", "context_length": [64], "hf": {"config": "gpt2.json", "n_layer": [1, 2]}}
    sweep = load(SHORT, gpt2, custom_sizes={"mine": SHAPE})
    assert [run.size for run in sweep.runs] == ["small", "gpt2", "gpt2"]
    assert [run.run_id for run in select_runs(sweep, "n_layer=2")] == ["gpt2-ctx64-fp32-naive-forward-hf-n_layer2"]


def test_only_chooses_blocks_by_name(load):
    sweep = load(SHORT, LONG)
    assert select_runs(sweep, "block=long") == sweep.blocks[1].runs
    assert select_runs(sweep, "block=long,context_length=512") == sweep.blocks[1].runs[:1]
    assert select_runs(sweep, "block=short,block=long") == select_runs(sweep, "") == sweep.runs
    with pytest.raises(SweepError, match="block=wide: no block is called so; this sweep has: short, long"):
        select_runs(sweep, "block=wide")
    with pytest.raises(SweepError, match="context_length=512: no run has this context_length"):
        select_runs(sweep, "block=short,context_length=512")


def test_a_file_without_blocks_has_none_to_choose(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(SHARED | {"context_length": [8]}))
    with pytest.raises(SweepError, match="block=x: no block is called so; this sweep has no blocks"):
        select_runs(load_sweep(path), "block=x")


def test_shards_divide_the_runs_of_all_blocks(load):
    sweep = load(SHORT, LONG)
    parts = [select_shard_runs(sweep.runs, Shard(index, 2), sweep.protocol) for index in (1, 2)]
    assert all(parts) and sorted(run.run_id for part in parts for run in part) == sorted(
        run.run_id for run in sweep.runs
    )


@pytest.mark.parametrize(
    ("blocks", "top", "said"),
    [
        ([SHORT | {"mode": ["x"]}, LONG], {}, "block short: mode.0: should be 'forward'"),
        ([SHORT, LONG | {"sise": ["xl"]}], {}, "block long: sise: unknown key; allowed: size, "),
        ([SHORT, LONG | {"profiled_steps": 0}], {}, "block long: profiled_steps: counts for the whole file"),
        ([SHORT, {"name": "long"}], {}, "block long: context_length: given neither here nor at the top of the file"),
        ([SHORT, LONG | {"attention": ["flash"]}], {}, "block long: attention: cudnn and flash exist for"),
        (
            [SHORT, LONG | {"custom_sizes": {"odd": SHAPE | {"x": 2}}}],
            {},
            "block long: custom_sizes.odd.x: unknown key",
        ),
        ([SHORT, {"context_length": [8]}], {}, "block 2: has no name; give each block one"),
        ([SHORT, 7], {}, "block 2: should be a valid dictionary"),
        ([SHORT | {"name": "a,b"}, LONG], {}, "block a,b: name: String should match pattern"),
        ([SHORT, LONG | {"name": "short"}], {}, "blocks: two are called short; rename one of them"),
        ([], {}, "blocks: List should have at least 1 item"),
        ([SHORT, LONG], {"mode": ["x"]}, "mode.0: should be 'forward'"),
        ([SHORT, LONG], {"sise": ["xl"]}, "sise: unknown key; allowed: name, size, "),
        ([SHORT, LONG | {"repeats": 60_000}], {}, "block long: 120,000 runs: at most 100,000 are allowed"),
        ([SHORT, LONG], {"repeats": 40_000}, "120,000 runs: at most 100,000 are allowed"),
    ],
)
def test_an_error_names_the_block_and_what_to_do(load, blocks, top, said):
    with pytest.raises(SweepError) as raised:
        load(*blocks, **top)
    [line] = str(raised.value).splitlines()
    assert said in line.partition("sweep.yaml: ")[2]


@pytest.mark.parametrize(
    ("context_length", "batch_size", "said"),
    [
        ([64, 128], 4, "short and again both have small-ctx128-fp32-naive-forward; .* take it out of one of the two"),
        ([256, 512, 1024, 512], 8, "long and again both have small-ctx512-fp32-naive-forward-batch8 and 1 more;"),
    ],
)
def test_two_blocks_with_one_run_are_refused(load, context_length, batch_size, said):
    again = {"name": "again", "context_length": context_length, "batch_size": batch_size}
    with pytest.raises(SweepError, match=f"blocks: {said}") as raised:
        load(SHORT, LONG, again)
    assert len(str(raised.value).splitlines()) == 1
    assert len(load(SHORT, LONG, again | {"batch_size": 2}).runs) == 3 + len({*context_length})


def test_plan_prints_the_runs_of_all_blocks(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(SHARED | {"blocks": [SHORT, LONG]}))
    planned = jobs("plan", "--sweep", file)
    assert planned.returncode == 0, planned.stderr
    assert [line.split()[0] for line in planned.stdout.splitlines()[1:4]] == [
        run.run_id for run in load_sweep(file).runs
    ]
    assert len(jobs("plan", "--sweep", file, "--only", "block=short").stdout.splitlines()) == 3


@pytest.mark.long
def test_shards_of_blocks_are_measured_merged_and_one_recording(tmp_path, fake_worker):
    file = tmp_path / "sweep.yaml"
    top = {key: value for key, value in TINY.items() if key != "context_length"} | {"mode": ["forward"]}
    blocks = [{"name": "short", "context_length": [8]}, {"name": "long", "context_length": [16], "batch_size": 2}]
    file.write_text(yaml.safe_dump(top | {"profiled_steps": 0, "blocks": blocks}))
    for index in (1, 2):
        measured = jobs("run", "--sweep", file, "--results", tmp_path, "--device", "cpu", "--shard", f"{index}/2")
        assert measured.returncode == 0, measured.stderr
    merged = merge([tmp_path / "tiny" / f"shard-{index}-of-2" for index in (1, 2)], tmp_path / "merged")
    assert merged.missing == {} and len(merged.runs) == 2
    ingest(tmp_path / "merged", tmp_path / "recording")
    runs = store.load(tmp_path / "recording").runs.set_index("context_length")
    assert runs["batch_size"].to_dict() == {8: 4, 16: 2} and set(runs["status"].astype(str)) == {"ok"}


def test_a_run_that_no_block_asks_for_is_not_merged(tmp_path, fake_worker):
    file = tmp_path / "sweep.yaml"
    top = {key: value for key, value in TINY.items() if key != "context_length"} | {"mode": ["forward"]}
    file.write_text(yaml.safe_dump(top | {"profiled_steps": 0, "blocks": [{"name": "a", "context_length": [8]}]}))
    one = Session(tmp_path / "results", file)
    one.run()
    planned = one.results.folder / "sweep.json"
    plan = json.loads(planned.read_text())
    plan["blocks"][0]["batch_size"] = 2
    planned.write_text(json.dumps(plan))
    assert list(merge([one.results.folder], tmp_path / "merged").missing) == ["tiny-ctx8-fp32-naive-forward"]
