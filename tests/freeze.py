"""Make the small recordings of `tests/data/recordings` from shipped ones: `python -m tests.freeze`.

They are frozen: tests read them, so that a new recording in `site/data` changes no unit test. Run this only to add a
run, and commit its files once: each version stays in the history.
"""

from dataclasses import replace
from pathlib import Path

from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.site.combine import join_recordings, select_runs
from tests import synthetic
from tests.frozen import FOLDER, NUM_STEPS
from tests.shipped.recordings import locate

SMALL, H100 = "small-ctx{}-fp32-naive-{}", "small-ctx{}-bf16-{}-{}"
TRAIN = SMALL.format(128, "train_step")

RUNS = {
    "one_gpu": {
        "precision": [f"small-ctx512-{precision}-naive-train_step" for precision in ("fp32", "tf32", "bf16")],
        "optimizer": [TRAIN, *(f"{TRAIN}-adamw_{name}" for name in ("loop", "foreach", "fused"))],
        "compile": [
            *(SMALL.format(context, f"forward{how}") for context in (128, 512) for how in ("", "-compile_default")),
            SMALL.format(128, "forward-compile_cudagraphs"),
        ],
        "h200-fp32": [
            *(SMALL.format(context, "forward_backward") for context in (128, 512)),
            "2.7B-ctx1024-fp32-naive-forward",
        ],
    },
    "attention": {
        "attention_bf16": [
            H100.format(context, attention, mode)
            for context in (128, 512)
            for attention in ("naive", "flash", "efficient")
            for mode in ("forward", "train_step")
        ],
    },
}
"""Runs of each frozen recording, by the shipped recording that they are of. The first gives the manifest, with its
measured peaks."""


def freeze(name: str) -> store.Recording:
    """Return the runs of a frozen recording with their first steps alone."""
    parts = [select_runs(store.load(locate(source)), run_ids) for source, run_ids in RUNS[name].items()]
    joined = join_recordings([cut_steps(part) for part in parts])
    statuses = joined.runs[["run_id", "status"]].astype(str).to_dict("records")
    manifest = joined.manifest | {"name": name, "study": "", "sweep": name, "runs": statuses}
    manifest["protocol"] = manifest["protocol"] | {"profiled_steps": [NUM_STEPS]}
    return replace(joined, manifest=manifest)


def cut_steps(rec: store.Recording) -> store.Recording:
    """Return `rec` with NUM_STEPS profiled steps of each run, and the sums that nsys would print of them."""
    tables = {name: getattr(rec, name) for name in ("ranges", "kernels", "api", "memops")}
    tables = {name: frame[frame["step"] < NUM_STEPS].reset_index(drop=True) for name, frame in tables.items()}
    is_kept = (rec.steps["collector"].astype(str) == "timer") | (rec.steps["step"] < NUM_STEPS)
    tables |= {"steps": rec.steps[is_kept].reset_index(drop=True)}
    tables |= {"runs": rec.runs.assign(profiled_steps=NUM_STEPS)}
    return replace(rec, **tables, nsys_sums=synthetic.nsys_sums(tables["kernels"].astype({"phase": str})))


def write(rec: store.Recording, folder: Path) -> None:
    tables = {name: getattr(rec, name) for name in table_schema.TABLES}
    store.write(folder, tables | {"kernels": rec.kernels.drop(columns="family")}, rec.manifest)


if __name__ == "__main__":
    for name in RUNS:
        write(freeze(name), FOLDER / name)
