"""Scripts whose steps no optimizer ends: benchmarks of forward and backward passes, and text that is generated. On the
CPU, with the fake nsys."""

import json

import pytest

from profiler_job.analysis.recording import store
from profiler_job.jobs.cli.script_notes import describe_generation, describe_other_loops
from profiler_job.jobs.executor import script
from tests.jobs.conftest import IN_NEW_PYTHON
from tests.jobs.profiled_scripts import HEAD, ended
from tests.without_compiler import WITHOUT_COMPILER

BENCHMARK = (
    HEAD
    + """
OPTIMIZER
x = torch.randn(4, 8)
def forward():
    with torch.no_grad():
        return model(x).pow(2).mean()
def both():
    model.zero_grad()
    model(x).pow(2).mean().backward()
for function, count in LOOPS:
    for _ in range(count): function()
print("the end")
"""
)
GENERATES = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
    def forward(self, ids, cache):
        cache = torch.cat((cache, self.embed(ids)), 1)
        return self.head(cache.mean(1)), cache
model = Model()
with torch.inference_mode():
    for _ in range(TEXTS):
        ids, cache = torch.randint(0, 16, (2, 6)), torch.zeros(2, 0, 8)
        for _ in range(12):
            logits, cache = model(ids, cache)
            ids = logits.argmax(-1, keepdim=True)
print("the end")
"""
)


def benchmark(loops: str, optimizer: str = "optimizer = torch.optim.AdamW(model.parameters())") -> str:
    return BENCHMARK.replace("OPTIMIZER", optimizer).replace("LOOPS", loops)


TWO = "((forward, 15), (both, 30))"


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["", None], ids=["no optimizer", "one that never steps"])
def test_each_loop_of_a_benchmark_is_measured(profile, tmp_path, optimizer):
    source = benchmark(TWO, *(() if optimizer is None else (optimizer,)))
    collector = () if optimizer is None else ("--collector", "events")  # with nsys both are on one site
    printed, code = ended(profile(source, "--skip", "3", "--steps", "3", *collector, is_whole=True))
    assert code == 0, printed
    assert (tmp_path / "results" / "site" / "index.html").is_file() is (optimizer is None)
    modes = {}
    for kind in ("forward", "backward"):
        runs = store.load(tmp_path / "results" / "recordings" / f"train-{kind}").runs
        modes[kind] = runs[["mode", "batch_size", "warmup_steps", "measured_steps"]].iloc[0].tolist()
    assert modes == {"forward": ["forward", 4, 3, 3], "backward": ["forward_backward", 4, 3, 3]}


@pytest.mark.long
@pytest.mark.parametrize("loops, mode", [("((both, 30),)", "forward_backward"), ("((forward, 30),)", "forward")])
def test_a_benchmark_of_one_loop_keeps_its_name(profile, tmp_path, loops, mode):
    printed, code = ended(profile(benchmark(loops), "--skip", "3", "--steps", "3", "--collector", "events"))
    assert code == 0, printed
    assert store.load(tmp_path / "results" / "recordings" / "train").runs["mode"].tolist() == [mode]


@pytest.mark.long
def test_a_loop_of_the_class_is_measured_under_the_defaults(profile, tmp_path):
    """Five passes of warm-up and ten that are measured."""
    printed, code = ended(profile(benchmark("((both, 15),)"), "--collector", "events"))
    assert code == 0, printed
    runs = store.load(tmp_path / "results" / "recordings" / "train").runs
    assert runs[["warmup_steps", "measured_steps"]].iloc[0].tolist() == [5, 4]


@pytest.mark.long
def test_loops_too_short_for_the_numbers_given_are_named(profile):
    printed, code = ended(profile(benchmark("((both, 9),)"), "--skip", "5", "--collector", "events"))
    assert code == 1 and "9 forward and backward passes" in printed and "let it run longer" in " ".join(printed.split())


@pytest.mark.long
def test_a_loop_before_the_first_update_is_said(followed):
    steps = "\nfor _ in range(30): both(); optimizer.step()"
    printed, code, noted = followed(benchmark("((forward, 15), (both, 9))") + steps)
    assert code == 0, printed
    assert noted["optimizers"] == ["AdamW"] and len(describe_other_loops(noted)) == 2


@pytest.mark.long
def test_prefill_and_decode_are_told_apart(followed):
    printed, code, noted = followed(GENERATES.replace("TEXTS", "5"))
    assert code == 0 and noted["stage"] == "done", printed
    assert [step["kind"] for step in noted["steps"]] == ["prefill", "decode", "decode"]
    assert [step["tokens"] for step in noted["steps"]] == [2 * 6, 2, 2]
    assert noted["captured_kinds"] == [["prefill", 12], ["decode", 2], ["decode", 2]]
    run = script.build_run(noted)
    assert (run["mode"], run["batch_size"], run["context_length"]) == ("forward", 2, 6)
    scalars = {row["figure"]: row["value"] for row in script.build_timings(followed.ranks)["figures"]}
    walls = [step["wall_ns"] for step in noted["steps"]]
    assert scalars["prefill_tokens_per_s"] == pytest.approx(12e9 / walls[0])
    assert scalars["decode_tokens_per_s"] == pytest.approx(4e9 / sum(walls[1:]))
    assert [line.partition(":")[0] for line in describe_generation(noted)] == ["prefill", "decode"]


@pytest.mark.long
def test_decode_steps_of_a_compiled_call_are_seen(followed):
    """As `generate` of Transformers compiles them. A step was a whole text."""
    compiled = GENERATES.replace(
        "with torch.inference", 'call = torch.compile(model.__call__, backend="eager")\nwith torch.inference'
    )
    source = compiled.replace("= model(ids, cache)", "= (call if ids.shape[1] == 1 else model)(ids, cache)")
    printed, code, noted = followed(source.replace("TEXTS", "5").replace(WITHOUT_COMPILER, ""), *IN_NEW_PYTHON)
    assert code == 0 and noted["stage"] == "done", printed
    assert [step["kind"] for step in noted["steps"]] == ["prefill", "decode", "decode"]
    assert noted["captured_kinds"] == [["prefill", 12], ["decode", 2], ["decode", 2]]


@pytest.mark.long
@pytest.mark.parametrize("texts, captured", [(3, "prefill"), (1, "decode")])
def test_few_texts_are_measured_from_another_place(profile, tmp_path, texts, captured):
    source = GENERATES.replace("TEXTS", str(texts))
    printed, code = ended(profile(source, "--skip", "1", "--steps", "2", "--collector", "events"))
    assert code == 0, printed
    timings = json.loads((tmp_path / "results" / "train" / "train" / "timings.json").read_text())
    phases = [row["phase"] for row in timings["steps"] if row["phase"] not in ("step",)]
    assert phases[0] == captured and "decode" in phases
