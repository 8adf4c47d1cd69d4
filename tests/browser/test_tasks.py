"""What readers come for, done from home by clicks alone, at most two, without the search, on a phone as well: where
they lead the answer can be read in half a minute, as it is worked out here from the recordings."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd
import pytest

from profiler_job.analysis.metrics import device_memory, utilisation
from profiler_job.analysis.metrics.turns import compare_turns, list_rounds
from profiler_job.analysis.recording import store
from profiler_job.analysis.reference.gpu_prices import find_price
from profiler_job.analysis.render import text
from profiler_job.jobs import memory
from profiler_job.jobs.workloads.transformer.sizes import VOCAB_SIZE
from tests.shipped.recordings import RECORDINGS, locate

WIDTHS = (1280, 390)
MOST_CLICKS = 2
"""The choices of a case in the picker count as one."""
MOST_SECONDS, CLICK_S, WORDS_PER_MINUTE = 30, 3, 240
LOOKED_UP = 20
"""Words that a reader reads who looks an answer up: in a figure, a table, a list of terms, or behind a button."""
PROSE = "article :is(figure, table, form, pre, .entry, .scroll, .states, .timeline) { display: none !important }"
NUM_TASKS = 40
SMALL = "small-ctx128-fp32-naive-train_step"
LARGE = "large-ctx512-bf16-sdpa-train_step-adamw_fused"
OPENING = LARGE.replace("512", "1024")
TRAINED = tuple(f"trained_{number}" for number in range(1, 9))
EAGER = r"bf16-sdpa-(?:forward|train_step)(?:-batch\d+)?-adamw_fused$"
"""In the ids of their runs, of the reference Transformer on one GPU that is not compiled."""
MEMORY_LIMITS = "Reading and writing memory takes"
OF_LARGE = MappingProxyType({"model": "large", "context": "512"})
"""The choices of its case."""


@cache
def table(recording: str, name: str) -> pd.DataFrame:
    """A table of a shipped recording, run ids as text."""
    return pd.read_parquet(locate(recording) / f"{name}.parquet").astype({"run_id": str})


def timed(recording: str, phase: str = "step") -> pd.Series:
    """Median of the timer by run, in ns."""
    steps = table(recording, "steps")
    return steps[(steps["collector"] == "timer") & (steps["phase"] == phase)].groupby("run_id")["wall_ns"].median()


def timed_by_turns(recording: str) -> pd.Series:
    """Step of each run that took turns, in ns: the median of its fastest process."""
    steps = table(recording, "steps")
    steps = steps[(steps["collector"] == "timer") & (steps["phase"] == "step")]
    return steps.groupby(["run_id", "process"])["wall_ns"].median().groupby("run_id").min()


def kernel_ns(recording: str, by: str = "run_id") -> pd.Series:
    return table(recording, "kernels").groupby(["run_id", *{by} - {"run_id"}], observed=True)["duration_ns"].sum()


def busy_ns(recording: str) -> pd.Series:
    """Time of kernels, copies and fills in a profiled step, of runs in which none overlaps another."""
    sums = [table(recording, name).groupby("run_id")["duration_ns"].sum() for name in ("kernels", "memops")]
    return sums[0].add(sums[1], fill_value=0) / table(recording, "runs").set_index("run_id")["profiled_steps"]


@cache
def classified(recording: str, mode: str) -> pd.DataFrame:
    """The kernels of a mode with their families."""
    kernels = store.load(locate(recording)).kernels.astype({"run_id": str})
    kernels = kernels[kernels["run_id"].str.contains(rf"-{mode}(?:-adamw_fused)?$")]
    return kernels.assign(duration_ns=kernels["end_ns"] - kernels["start_ns"], family=kernels["family"].astype(str))


def say_step(run: str = OPENING, recording: str = "trained_1") -> list[str]:
    wall = timed_by_turns(recording)[run]
    running = 0.0
    for name in ("kernels", "memops"):
        rows = table(recording, name)
        running += rows[rows["run_id"] == run].groupby("step")["duration_ns"].sum().median()
    return [f"{wall / 1e6:.3g} ms", f"CPU {text.percent(1 - running / wall, 0)}"]


def say_what_fits() -> list[str]:
    """Of each case of 1.3B parameters, as the step is simulated here anew; and a peak that was measured."""
    lines = []
    for context, batch in device_memory.CASES:
        for setting, axes in device_memory.SETTINGS.items():
            of_run = {**axes, "context_length": context, "batch_size": batch, "accumulation": 1, "mode": "train_step"}
            shape = memory.Shape(**memory.MODEL_SIZES["1.3B"]._asdict(), vocab_size=VOCAB_SIZE, **of_run)
            shape = shape._replace(attention="flash" if axes["attention"] == "sdpa" else "naive")
            failure = memory.find_failure(shape, memory.estimate_usable_bytes(24))
            peak = max(memory.predict_outcome(shape).peaks[-1].values()) / 2**30
            ends = f"no: {failure.phase}, step {failure.step + 1}" if failure else "fits"
            lines.append(f"1.3B {context:,} {batch} {setting} {peak:.2f} not measured {ends}")
    runs = table("h200-fp32", "runs").set_index("run_id")
    measured = runs.loc["large-ctx512-fp32-naive-train_step", "peak_memory_bytes"] / 2**30
    return [*lines, f"FP32 {measured:.2f} {measured:.2f}"]


def say_first_change() -> list[str]:
    """The processes that measured both steps do not agree, so times stand for a ratio."""
    before, after = (timed("compile")[SMALL + suffix] / 1e6 for suffix in ("", "-compile_default"))
    return [f"{before:.0f} → {after:.0f} ms", "processes differ by", "Compile the model"]


def say_waits() -> list[str]:
    share = 1 - busy_ns("h200-fp32")[SMALL] / timed("h200-fp32")[SMALL]
    return [f"the GPU waits for the CPU {text.percent(share, 0)}"]


def say_forward() -> list[str]:
    times = timed("h200-fp32", "forward").filter(regex="-forward$")
    return [str(text.rounded(ns, "ns")) for ns in (times.min(), times.max())]


def say_top_kernel() -> list[str]:
    by_name = kernel_ns("h200-fp32", "kernel_name").groupby("run_id").max() / kernel_ns("h200-fp32")
    shares = by_name.filter(regex="-forward$")
    return [text.percent_range((shares.min(), shares.max()))]


def say_backward() -> list[str]:
    phases = kernel_ns("h200-fp32", "phase").unstack().filter(regex="-train_step$", axis=0)
    ratios = phases["backward"] / phases["forward"]
    return [text.ratio_range((ratios.min(), ratios.max()))]


def say_bounds() -> list[str]:
    """In FP32 all matmuls are above the ridge point, so memory limits a run if all other kernels take the largest part
    of its step: none."""
    rec = store.load(locate("h200-fp32"))
    kernels = rec.kernels.astype({"run_id": str})
    kernels["duration_ns"] = kernels["end_ns"] - kernels["start_ns"]
    num_steps = kernels.groupby("run_id")["step"].nunique()
    busy = kernels.groupby("run_id")["duration_ns"].sum() / num_steps
    matmuls = kernels[kernels["family"] == "gemm"].groupby("run_id")["duration_ns"].sum() / num_steps
    waits = timed("h200-fp32").reindex(busy.index) - busy
    assert not ((busy - matmuls > matmuls) & (busy - matmuls > waits)).any()
    return ["In FP32, compute limits", f"of {len(busy)} runs"]


def say_fused_attention() -> list[str]:
    """How much faster the GPU does the training step that gains most."""
    busy = busy_ns("attention_bf16")
    fused = busy.filter(regex="-(?:cudnn|flash|efficient)-train_step$")
    eager = fused.index.str.replace("cudnn|flash|efficient", "naive", regex=True)
    return [f"up to {text.ratio((busy.reindex(eager).to_numpy() / fused).max())} as fast"]


def compare_precisions(precision: str) -> list[float]:
    """How many times as fast steps of three models are as in FP32, by turns."""
    ratios = []
    for name, sizes in {"changes_1": ("small", "large"), "changes_2": ("xl",)}.items():
        rounds = list_rounds(table(name, "steps"), table(name, "processes"))
        for size in sizes:
            runs = [f"{size}-ctx512-{of}-naive-train_step" for of in ("fp32", precision)]
            ratios.append(compare_turns(rounds, rounds, runs[:1], runs[1:]).times_as_fast)
    return ratios


def say_precision() -> list[str]:
    gains = [max(compare_precisions(of)) for of in ("tf32", "bf16")]
    return [f"{text.rough_ratio(gains[0])} (TF32) and {text.rough_ratio(gains[1])} (BF16)"]


def say_optimizer() -> list[str]:
    times = pd.concat([kernel_ns(name, "phase").unstack()["optimizer"] for name in ("changes_1", "changes_2")])
    times = times.filter(regex="-fp32-naive-train_step(?:-adamw_fused)?$")
    fused = times.filter(like="-adamw_fused").rename(lambda run: run.removesuffix("-adamw_fused"))
    ratios = times.filter(regex="train_step$") / fused
    return [text.ratio_range((ratios.min(), ratios.max()))]


def say_warm_up() -> list[str]:
    """The step of small at 128 in all recordings that timed more than one step of it."""
    medians = []
    for folder in RECORDINGS:
        runs = table(folder.name, "runs").set_index("run_id")
        if SMALL in runs.index and runs.loc[SMALL, "measured_steps"] > 1:
            medians.append(timed(folder.name)[SMALL])
    return [f"from {text.duration(min(medians))} to {text.duration(max(medians))}"]


def say_checked() -> list[str]:
    finished = [(table(folder.name, "runs")["status"] == "ok").sum() for folder in RECORDINGS]
    return [f"checks of {sum(finished)} finished runs hold"]


def say_profile() -> list[str]:
    return ["profiler-job profile"]


def say_data() -> list[str]:
    return [f"{len(table('h200-fp32', 'kernels')):,}"]


def say_cost() -> list[str]:
    """Of 1M tokens of a step of large in BF16 at 1,024 tokens, at the list price of an H200."""
    tokens_per_s = 4 * 1024 / timed_by_turns("trained_1")[OPENING] * 1e9
    cost = find_price("NVIDIA H200").usd_per_hour / 3600 / tokens_per_s * 1e6
    return [f"${text.rounded(cost, 'number')}", "Do this next"]


def say_step_of_1b() -> list[str]:
    return [MEMORY_LIMITS, say_cost()[0], "Compile the model"]


def say_step_of_1_3b() -> list[str]:
    """As the timer measured it, at the list price of an H200."""
    step_ns = timed_by_turns("trained_1")["1.3B-ctx2048-bf16-sdpa-train_step-adamw_fused"]
    cost = find_price("NVIDIA H200").usd_per_hour / 3600 / (4 * 2048 / step_ns * 1e9) * 1e6
    return [MEMORY_LIMITS, text.duration(step_ns), f"${text.rounded(cost, 'number')}", "Compile the model"]


def say_gpus() -> list[str]:
    prices = [find_price(name).usd_per_hour for name in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")]
    return ["Both cost about the same", "on an H200 as on an H100", f"at {text.ratio(prices[0] / prices[1])} the price"]


def say_best_mfu() -> list[str]:
    """Of all training steps in BF16, compiled or not, at any context and batch."""
    reached = {}
    for name in (*TRAINED, "ladder_compile"):
        runs = table(name, "runs").set_index("run_id")
        runs = runs[runs["workload"] == "transformer"]
        steps = timed_by_turns(name) if name in TRAINED else timed(name)
        chosen = [run for run in runs.index if "-bf16-" in run and "-train_step" in run]
        of = ["size", "compile", "batch_size"]
        reached |= {run: (utilisation.mfu(runs.loc[run], steps[run]), *runs.loc[run, of]) for run in chosen}
    mfu, size, compiled, batch = max(reached.values())
    assert compiled != "off" and batch > 4
    return [f"{text.percent(mfu, 0)} of the data-sheet peak ({size}, compiled, larger batch)"]


SAYS = """words => [...document.querySelectorAll('.numbers')].some(
    one => one.offsetParent && one.innerText.replace(/\\s+/g, ' ').includes(words)
)"""


def say_large_step() -> list[str]:
    return [text.rounded(timed_by_turns("trained_2")[OPENING.replace("large", "2.7B")], "ns")]


def say_timeline() -> list[str]:
    return ["Open the timeline", "Trace for Perfetto"]


def say_first_change_of_large() -> list[str]:
    return [f"{text.rough_ratio(compare_precisions('bf16')[1])} [", "Use BF16 autocast"]


def say_two_gpus() -> list[str]:
    """Of two with the batch of one each, the slower rank's step: roughly, as processes of one step differ."""
    steps = table("gpus", "steps")
    walls = steps[(steps["collector"] == "timer") & (steps["phase"] == "step")]
    walls = walls.groupby(["run_id", "process", "step"])["wall_ns"].max().reset_index()
    times = walls.groupby("run_id")["wall_ns"].median()
    given = {}
    for way in ("ddp", "fsdp"):
        ratios = [2 * times[run.removesuffix(f"-2gpus-{way}")] / times[run] for run in times.index if run.endswith(way)]
        given[way] = text.ratio_range((min(ratios), max(ratios)))
    medians = walls.groupby(["run_id", "process"])["wall_ns"].median().groupby("run_id")
    apart = (medians.max() / medians.min()).max() - 1
    assert apart > 0.05
    return [
        f"{given['ddp']} the tokens per second of one with DDP",
        f"{given['fsdp']} with FSDP",
        f"differ by up to {text.percent(apart, 0)}",
    ]


def say_softmax() -> list[str]:
    """Against the matmul of QKᵀ alone, without its scale and mask."""
    kernels = classified("h200-fp32", "forward")
    part = kernels["module"].astype(str).str.rpartition("/")[2]
    sums = [
        kernels[which].groupby("run_id")["duration_ns"].sum()
        for which in (part == "softmax", (part == "attention_scores") & (kernels["family"] == "gemm"))
    ]
    ratios = sums[0] / sums[1]
    return [f"{text.ratio_range((ratios.min(), ratios.max()))} as long"]


def say_accumulation() -> list[str]:
    """How long a step takes in four micro-batches, over the whole batch."""
    times = timed("accumulation")
    ratios = [times[run] / times[run.replace("accum4-", "")] for run in times.index if "accum4" in run]
    return [text.ratio_range((min(ratios), max(ratios))), "peak memory"]


def say_bf16() -> list[str]:
    """The shares of matmuls in FP32 and in BF16, of the steps that were recorded in both."""
    shares = {}
    for recording in ("h200-fp32", *TRAINED):
        kernels = classified(recording, "train_step")
        matmuls = kernels[kernels["family"] == "gemm"].groupby("run_id")["duration_ns"].sum()
        shares |= (matmuls / kernels.groupby("run_id")["duration_ns"].sum()).to_dict()
    plain = {run: run.replace("bf16-sdpa", "fp32-naive").removesuffix("-adamw_fused") for run in shares}
    both = [(shares[base], shares[run]) for run, base in plain.items() if run != base and base in shares]
    return ["as fast as plain FP32", *(text.percent_range((min(of), max(of))) for of in zip(*both))]


def say_together() -> list[str]:
    return ["All changes together", "as fast as plain FP32"]


def say_predictions() -> list[str]:
    scripts = json.loads((locate("h200-fp32").parents[1] / "benchmarks" / "parts.json").read_text())["scripts"]
    last = [script for script in scripts if script["commit"] == scripts[-1]["commit"]]
    cells = [(script["step_ns"], cell) for script in last for cell in script["cells"]]
    assert cells
    errors = pd.Series([step / c["predicted"]["step_ns"] / c["measured"]["times_as_fast"] - 1 for step, c in cells])
    return [f"{len(cells)} predictions", f"The median error is {text.percent(errors.abs().median(), 1)}"]


def say_repeats() -> list[str]:
    first, second = kernel_ns("h200-fp32"), kernel_ns("again")
    assert len(first) == 60 and (second / first - 1).abs().max() < 0.011
    return ["GPU time repeats within 1.1%", "in all 60 runs"]


def say_mfu() -> list[str]:
    return ["Model FLOPs utilisation"]


def say_band() -> list[str]:
    return ["By how much two recordings of the same time differ"]


def say_machine() -> list[str]:
    return [str(table("h200-fp32", "runs")["driver"].iloc[0])]


def say_clock() -> list[str]:
    return ["held the GPU's clock down"]


def say_launches() -> list[str]:
    return [f"{int(table('h200-fp32', 'api')['calls'].sum()):,} calls"]


def say_kernel_names() -> list[str]:
    """Of steps that no compiler wrote kernels for."""
    names = [table("h200-fp32", "kernels")["kernel_name"]]
    for name in TRAINED:
        kernels = table(name, "kernels")
        names.append(kernels.loc[kernels["run_id"].str.contains(EAGER), "kernel_name"])
    return [f"{pd.concat(names).nunique():,} different kernels"]


def say_compared() -> list[str]:
    ratios = compare_precisions("bf16")
    ends = [text.rounded(ratio, "ratio") for ratio in (min(ratios), max(ratios))]
    return [f"B is {ends[0]} to {ends[1]} (median", f"as fast in all {len(ratios)} pairs"]


def say_beyond() -> list[str]:
    times = classified("h200-fp32", "forward").groupby(["run_id", "family"])["duration_ns"].sum().unstack()
    shares = 1 - times["gemm"] / times.sum(axis=1)
    return [text.percent_range((shares.min(), shares.max()))]


def say_stages() -> list[str]:
    return ["Each step is timed without a profiler"]


def say_generation() -> list[str]:
    """A token with a growing cache, over a prefill and 63 decode steps, and with a compiled static one."""
    figures = table("generation", "figures").set_index(["run_id", "figure"])["value"]
    growing = "generate-dynamic-1"
    text_ns = figures[growing, "prefill_ns"] + 63 * figures[growing, "decode_ns"]
    both = (text_ns, timed("generation")["generate-compiled-1"])
    return ["The CPU does", *(str(text.duration(each / 64)) for each in both)]


class Task(NamedTuple):
    clicks: list[str]
    """Words of the links, headings and choices to click, in order."""
    where: str
    say: Callable[[], list[str]]
    """What is to be read there."""
    choices: Mapping[str, str] = MappingProxyType({})
    """What is chosen on the first screen before, by name."""


TASKS = {
    "how long does a bf16 training step of large at 512 take, and what limits it?": Task(
        ["BF16"], "", lambda: say_step(LARGE, "trained_6"), OF_LARGE
    ),
    "does my 1.3B model fit 24 GB?": Task(
        ["What fills the memory", "What fits where"], "report/memory-use.html", say_what_fits
    ),
    "which change helps small at 128 most?": Task(["FP32"], "", say_first_change, {"model": "small", "context": "128"}),
    "1B, 1k, BF16 on an H200: what limits it, what helps, what does it cost?": Task(
        [], "", say_step_of_1b, {"model": "large", "context": "1,024"}
    ),
    "1.3B, 2k, BF16 on an H200: what limits it, what helps, what does it cost?": Task(
        [], "", say_step_of_1_3b, {"model": "1.3B", "context": "2,048"}
    ),
    "what limits generating text?": Task(["What limits generating text"], "report/generation.html", say_generation),
    "what does a million tokens cost?": Task([], "", say_cost, {"model": "large", "context": "1,024"}),
    "share this chart for 2.7B": Task(
        [],
        "?model=2.7B&context=1%2C024&batch=4&gpu=H200&state=BF16",
        say_large_step,
        {"model": "2.7B", "context": "1,024"},
    ),
    "large in FP32: what do I change first?": Task(["FP32"], "", say_first_change_of_large, OF_LARGE),
    "show me the timeline of a step": Task(["this run"], "", say_timeline),
    "what does one run look like?": Task(["this run"], "", say_step),
    "H100 or H200?": Task(["H100 or H200"], "report/token-cost.html", say_gpus),
    "what is the best MFU?": Task(["H100 or H200"], "report/token-cost.html", say_best_mfu),
    "when does the GPU wait?": Task(["When does the GPU wait"], "report/host.html", say_waits),
    "do CUDA graphs help a small model?": Task(["When does the GPU wait"], "report/host.html", say_waits),
    "how long does a forward pass take?": Task(
        ["How long does a forward pass take"], "report/forward-time.html", say_forward
    ),
    "which kernel takes most time?": Task(["Which kernel takes the most"], "report/top-kernel.html", say_top_kernel),
    "what runs besides matmuls?": Task(["other than matmuls"], "report/beyond-gemm.html", say_beyond),
    "what does the backward pass cost?": Task(
        ["How does the mix of kernels change"], "report/training-mix.html", say_backward
    ),
    "how is a step made up?": Task(["anatomy of a step"], "report/anatomy.html", say_step),
    "what does BF16 with all fused give?": Task(["What changes in BF16"], "report/in-bf16.html", say_bf16),
    "is a step compute-bound, memory-bound or launch-bound?": Task(
        ["What limits a step"], "report/bounds.html", say_bounds
    ),
    "is softmax as cheap as its FLOPs?": Task(["Does softmax cost"], "report/attention-cost.html", say_softmax),
    "does fused attention help at my context?": Task(
        ["What does fused attention save"], "report/fused-attention.html", say_fused_attention
    ),
    "what do attention and softmax cost together?": Task(
        ["attention and softmax"], "report/attention.html", say_fused_attention
    ),
    "what does lower precision give?": Task(["What does lower precision"], "report/precision.html", say_precision),
    "does a fused optimizer help?": Task(["What does AdamW cost"], "report/optimizer-cost.html", say_optimizer),
    "what does gradient accumulation cost?": Task(
        ["What does gradient accumulation"], "report/gradient-accumulation.html", say_accumulation
    ),
    "what does everything together give?": Task(["What does each optimisation"], "report/ladder.html", say_together),
    "how much faster are two GPUs?": Task(["What does a second GPU"], "report/several-gpus.html", say_two_gpus),
    "how many warm-up steps do I need?": Task(
        ["How many steps does a number need"], "report/warm-up.html", say_warm_up
    ),
    "does it repeat on another day?": Task(["Does a second recording"], "report/second-recording.html", say_repeats),
    "can I trust the numbers?": Task(["Do the numbers agree"], "report/reconciliation.html", say_checked),
    "how good are predictions?": Task(["predictions and their score"], "report/predictions.html", say_predictions),
    "how was it measured?": Task(["how we measured"], "report/methods.html", say_stages),
    "was the GPU's clock held down?": Task(
        ["how we measured", "Which clocks, temperatures"], "report/telemetry.html", say_clock
    ),
    "which driver was it?": Task(["how we measured", "On which machines"], "report/environment.html", say_machine),
    "what do CUDA calls cost?": Task(["CUDA calls"], "report/cuda-calls.html", say_launches),
    "what is this kernel?": Task(["kernels by family"], "report/kernels.html", say_kernel_names),
    "what is MFU?": Task(["glossary"], "report/glossary.html", say_mfu),
    "what is a noise band?": Task(["glossary"], "report/glossary.html", say_band),
    "is BF16 faster in every run?": Task(["two recordings compared"], "report/comparison.html", say_compared),
    "how do I profile my own training?": Task(["Profile your own script"], "guide/profile.html", say_profile),
    "where are the data?": Task(["data"], "report/data.html", say_data),
}
"""16 of them are older than the pages, and the others were written before these had answers to them."""


def read(page) -> str:
    """What can be seen of the article, in one line."""
    return " ".join(page.locator("article").inner_text().split())


@pytest.fixture(scope="module", params=WIDTHS)
def reader(request, browser):
    """A page of each width for all tasks."""
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    yield context.new_page()
    context.close()


def count_seconds(page, wanted: list[str], num_clicks: int) -> float:
    """How long a reader takes who clicks, and reads the page from its top to the end of the answer."""
    page.add_style_tag(content=PROSE)
    prose = read(page)
    ends = [prose.find(words) + len(words) for words in wanted if words in prose]
    num_words = len(prose[: max(ends)].split()) if ends else LOOKED_UP
    return num_clicks * CLICK_S + num_words * 60 / WORDS_PER_MINUTE


def test_there_are_enough_tasks():
    assert len(TASKS) >= NUM_TASKS


@pytest.mark.parametrize("task", TASKS)
def test_a_task_takes_two_clicks_and_half_a_minute_from_home_to_its_answer(reader, address, task):
    clicks, where, say, choices = TASKS[task]
    num_clicks = len(clicks) + bool(choices)
    assert num_clicks <= MOST_CLICKS
    reader.goto(f"{address}index.html")
    for name, value in choices.items():
        options = reader.locator(f"select[name={name}] option").all_inner_texts()
        reader.locator(f"select[name={name}]").select_option(next(one for one in options if one.startswith(value)))
        reader.wait_for_function(
            "chosen => decodeURIComponent(location.search).includes(chosen)", arg=f"{name}={value}"
        )
    for words in clicks:
        reader.locator("article :is(a, summary, label)", has_text=words).locator("visible=true").first.click()
        reader.wait_for_load_state()
    assert reader.url.split("#")[0].endswith(where)
    wanted = [" ".join(words.split()) for words in say()]
    said = read(reader)
    assert wanted and not [words for words in wanted if words not in said], wanted
    assert count_seconds(reader, wanted, num_clicks) <= MOST_SECONDS
    if where.startswith("?"):  # what is shared shows the same to another reader
        reader.goto(reader.url)
        reader.wait_for_function(SAYS, arg=wanted[0])


def test_what_limits_a_step_leads_to_its_run_in_every_precision(page, address):
    page.goto(f"{address}report/bounds.html")
    for panel in page.locator("table.regimes").all():
        assert 0 < panel.locator("tbody td a").count() == panel.locator("tbody td:not(.why)").count()
        precision = panel.locator("caption").text_content().split(",")[0].split()[0].lower()
        assert f"-{precision}-" in panel.locator("td a").first.get_attribute("href")


def test_a_page_leads_to_the_one_before_and_the_next(page, address):
    page.goto(f"{address}report/bounds.html")
    for direction, where in (("next", "attention"), ("prev", "bounds"), ("prev", "anatomy")):
        page.locator(f".md-footer__link--{direction}").click()
        page.wait_for_url(f"**/report/{where}.html")
