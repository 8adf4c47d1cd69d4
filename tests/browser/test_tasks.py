"""What readers come for, done from home by clicks alone, at most three, without the search, on a phone as well: where
they lead the answer can be read, as it is worked out here from the recordings."""

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd
import pytest

from profiler_job.analysis.metrics import device_memory
from profiler_job.analysis.recording import store
from profiler_job.analysis.render import text
from profiler_job.jobs import memory
from profiler_job.jobs.workloads.transformer.sizes import VOCAB_SIZE
from tests.shipped.recordings import RECORDINGS, locate

WIDTHS = (1280, 390)
MOST_CLICKS = 3
SMALL = "small-ctx128-fp32-naive-train_step"
LARGE = "large-ctx512-bf16-sdpa-train_step-adamw_fused"


@cache
def table(recording: str, name: str) -> pd.DataFrame:
    """A table of a shipped recording, run ids as text."""
    return pd.read_parquet(locate(recording) / f"{name}.parquet").astype({"run_id": str})


def timed(recording: str, phase: str = "step") -> pd.Series:
    """Median of the timer by run, in ns."""
    steps = table(recording, "steps")
    return steps[(steps["collector"] == "timer") & (steps["phase"] == phase)].groupby("run_id")["wall_ns"].median()


def kernel_ns(recording: str, by: str = "run_id") -> pd.Series:
    return table(recording, "kernels").groupby(["run_id", *{by} - {"run_id"}], observed=True)["duration_ns"].sum()


def say_step() -> list[str]:
    wall = timed("h200-bf16")[LARGE]
    running = 0.0
    for name in ("kernels", "memops"):
        rows = table("h200-bf16", name)
        running += rows[rows["run_id"] == LARGE].groupby("step")["duration_ns"].sum().median()
    return [f"{wall / 1e6:.3g} ms", f"CPU ({1 - running / wall:.0%})"]


def say_what_fits() -> list[str]:
    """Of each case of 1.3B parameters, as the step is simulated here anew; and a peak that was measured."""
    lines = []
    for context, batch in device_memory.CASES:
        for setting, axes in device_memory.SETTINGS.items():
            of_run = {**axes, "context_length": context, "batch_size": batch, "accumulation": 1, "mode": "train_step"}
            shape = memory.Shape(**device_memory.PLANNED["1.3B"]._asdict(), vocab_size=VOCAB_SIZE, **of_run)
            shape = shape._replace(attention="flash" if axes["attention"] == "sdpa" else "naive")
            failure = memory.find_failure(shape, memory.estimate_usable_bytes(24))
            peak = max(memory.predict_outcome(shape).peaks[-1].values()) / 2**30
            ends = f"no: {failure.phase}, step {failure.step + 1}" if failure else "fits"
            lines.append(f"1.3B 1,255,311,360 {context:,} {batch} {setting} {peak:.2f} not measured {ends}")
    runs = table("h200-fp32", "runs").set_index("run_id")
    measured = runs.loc["large-ctx512-fp32-naive-train_step", "peak_memory_bytes"] / 2**30
    return [*lines, f"FP32 {measured:.2f} {measured:.2f}"]


def say_first_change() -> list[str]:
    steps = timed("compile")
    return [f"{text.rough_ratio(steps[SMALL] / steps[f'{SMALL}-compile_cudagraphs'])} [", "Use CUDA graphs"]


def say_waits() -> list[str]:
    steps = timed("compile")
    return [f"{text.rough_ratio(steps[SMALL] / steps[f'{SMALL}-compile_cudagraphs'])} as fast"]


def say_forward() -> list[str]:
    times = timed("h200-fp32", "forward").filter(regex="-forward$")
    return [text.duration(times.min()), text.duration(times.max())]


def say_top_kernel() -> list[str]:
    by_name = kernel_ns("h200-fp32", "kernel_name").groupby("run_id").max() / kernel_ns("h200-fp32")
    shares = by_name.filter(regex="-forward$")
    return [text.percent_range((shares.min(), shares.max()))]


def say_backward() -> list[str]:
    phases = kernel_ns("h200-fp32", "phase").unstack().filter(regex="-train_step$", axis=0)
    ratios = phases["backward"] / phases["forward"]
    return [text.ratio_range((ratios.min(), ratios.max()))]


def say_bounds() -> list[str]:
    """In FP32 all matmuls lie above the ridge point, so memory limits a run where all other kernels take the largest
    part of its step."""
    rec = store.load(locate("h200-fp32"))
    kernels = rec.kernels.astype({"run_id": str})
    kernels["duration_ns"] = kernels["end_ns"] - kernels["start_ns"]
    num_steps = kernels.groupby("run_id")["step"].nunique()
    busy = kernels.groupby("run_id")["duration_ns"].sum() / num_steps
    matmuls = kernels[kernels["family"] == "gemm"].groupby("run_id")["duration_ns"].sum() / num_steps
    waits = timed("h200-fp32").reindex(busy.index) - busy
    num = int(((busy - matmuls > matmuls) & (busy - matmuls > waits)).sum())
    return [f"Of {len(busy)} runs", f"and memory {num}"]


def say_fused_attention() -> list[str]:
    """How much faster the training step gets whose kernels get fastest."""
    kernels, steps = kernel_ns("attention_bf16"), timed("attention_bf16")
    gains = {
        run: kernels[eager] / kernels[run]
        for run in kernels.filter(regex="-(?:cudnn|flash|efficient)-train_step$").index
        if (eager := pd.Series([run]).str.replace("cudnn|flash|efficient", "naive", regex=True)[0]) in kernels
    }
    most = max(gains, key=lambda run: gains[run])
    eager = most.replace("cudnn", "naive").replace("flash", "naive").replace("efficient", "naive")
    return [f"the step itself {text.ratio(steps[eager] / steps[most])}"]


def say_precision() -> list[str]:
    steps = timed("precision").filter(regex="-train_step$")
    base = steps.filter(like="-fp32-")
    gains = [(base / steps.filter(like=f"-{of}-").set_axis(base.index)).max() for of in ("tf32", "bf16")]
    return [f"{text.rough_ratio(gains[0])} (TF32) and {text.rough_ratio(gains[1])} (BF16)"]


def say_optimizer() -> list[str]:
    times = kernel_ns("optimizer", "phase").unstack()["optimizer"]
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
    return [f"checks of {sum(finished)} runs hold"]


def say_profile() -> list[str]:
    return ["profiler-job profile"]


def say_run() -> list[str]:
    return [text.duration(timed("h200-fp32")["small-ctx128-fp32-naive-forward"])]


def say_data() -> list[str]:
    return [f"{len(table('h200-fp32', 'kernels')):,}"]


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
        ["BF16"], "", say_step, {"model": "large", "context": "512"}
    ),
    "does my 1.3B model fit 24 GB?": Task(
        ["What fills the memory", "What fits where"], "report/memory-use.html", say_what_fits
    ),
    "which change helps small at 128 most?": Task(["FP32"], "", say_first_change, {"model": "small", "context": "128"}),
    "when does the GPU wait?": Task(["When does the GPU wait"], "report/host.html", say_waits),
    "how long does a forward pass take?": Task(
        ["How long does a forward pass take"], "report/forward-time.html", say_forward
    ),
    "which kernel takes most time?": Task(["Which kernel takes the most"], "report/top-kernel.html", say_top_kernel),
    "what does the backward pass cost?": Task(
        ["How does the mix of kernels change"], "report/training-mix.html", say_backward
    ),
    "is a step compute-bound, memory-bound or launch-bound?": Task(
        ["What limits a step"], "report/bounds.html", say_bounds
    ),
    "does fused attention help at my context?": Task(
        ["What does fused attention save"], "report/fused-attention.html", say_fused_attention
    ),
    "what does lower precision give?": Task(["What does lower precision"], "report/precision.html", say_precision),
    "does a fused optimizer help?": Task(["What does AdamW cost"], "report/optimizer-cost.html", say_optimizer),
    "how many warm-up steps do I need?": Task(
        ["How many steps does a number need"], "report/warm-up.html", say_warm_up
    ),
    "can I trust the numbers?": Task(["Do the numbers agree"], "report/reconciliation.html", say_checked),
    "how do I profile my own training?": Task(["Profile your own script"], "guide/profile.html", say_profile),
    "what does one run look like?": Task(
        ["The recording behind", "All runs", "small"], "report/runs/small-ctx128-fp32-naive-forward.html", say_run
    ),
    "where are the data?": Task(["cite and reuse", "its files"], "report/data.html", say_data),
}


def read(page) -> str:
    """What can be seen of the article, in one line."""
    return " ".join(page.locator("article").inner_text().split())


@pytest.fixture(scope="module", params=WIDTHS)
def reader(request, browser):
    """A page of each width for all tasks."""
    context = browser.new_context(viewport={"width": request.param, "height": 900})
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("task", TASKS)
def test_a_task_takes_at_most_three_clicks_from_home_to_its_answer(reader, address, task):
    clicks, where, say, choices = TASKS[task]
    assert len(clicks) + len(choices) <= MOST_CLICKS
    reader.goto(f"{address}index.html")
    for name, value in choices.items():
        options = reader.locator(f"select[name={name}] option").all_inner_texts()
        reader.locator(f"select[name={name}]").select_option(next(one for one in options if one.startswith(value)))
        reader.wait_for_function("chosen => location.search.includes(chosen)", arg=f"{name}={value}")
    for words in clicks:
        reader.locator("article :is(a, summary, label)", has_text=words).locator("visible=true").first.click()
        reader.wait_for_load_state()
    assert reader.url.split("#")[0].endswith(where)
    said, wanted = read(reader), say()
    assert wanted and not [words for words in wanted if " ".join(words.split()) not in said], wanted


def test_what_limits_a_step_leads_to_its_run_in_every_precision(page, address):
    page.goto(f"{address}report/bounds.html")
    for panel in page.locator("table.regimes").all():
        assert 0 < panel.locator("tbody td a").count() == panel.locator("tbody td:not(.why)").count()
        precision = panel.locator("caption").inner_text().split(",")[0].lower()
        assert f"-{precision}-" in panel.locator("td a").first.get_attribute("href")


def test_a_question_leads_to_the_one_before_and_the_next(page, address):
    page.goto(f"{address}report/top-kernel.html")
    for direction, where in (("next", "beyond-gemm"), ("prev", "top-kernel"), ("prev", "forward-time")):
        page.locator(f".md-footer__link--{direction}").click()
        page.wait_for_url(f"**/report/{where}.html")
