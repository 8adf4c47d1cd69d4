"""Test what `tune` expects of changes: first write down what is expected of each, then measure the changes.

    python -m tests.bench.expected_changes expect --commit $(git rev-parse --short=10 HEAD) --out expected.json
    python -m tests.bench.expected_changes add --from expected.json     # and commit it before anything is measured
    python -m tests.bench.expected_changes measure --out measured.json
    python -m tests.bench.expected_changes add --from measured.json

`expect` measures the parts of each script alone, in a process of its own, and no change. `measure` starts the scripts
again and lets the changes take turns, before the process has a trace: launches stay slow after one. Then their kernels
are traced. A larger batch has processes of both sizes, which alternate. Both write what they have after each script,
and start no more than fit into --seconds. `add` puts scripts at the end of the ledgers that the page of predictions and
tests/shipped/test_parts.py read. None of CASES may have been measured before the code was last changed.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from profiler_job.jobs.contract.changes import LARGER_BATCH
from profiler_job.jobs.contract.paired_ratio import SPREAD_OF_CPU, compare_rounds
from profiler_job.jobs.executor.changed_calls import TWICE
from profiler_job.jobs.executor.predicted_steps import StepParts
from profiler_job.jobs.executor.script import find_input
from profiler_job.jobs.executor.tuned_script import TunedScript, TurnsProcess

SCRIPT = "tests/bench/trained_model.py"
NUM_ROUNDS, TURN_S = 8, 0.3
NUM_PAIRS = 2
"""Processes of each size, for a larger batch."""
BENCHMARKS = Path(__file__).resolve().parents[2] / "site" / "data" / "benchmarks"
EXPECTED, MEASURED = BENCHMARKS / "expected_parts.json", BENCHMARKS / "parts.json"
"""Ledgers."""
NESTED = re.compile(r"\n {3,}|\n  (?=[]}])")
"""The lines that a ledger does without: it has a script on a line."""


class Case(NamedTuple):
    """A script. options: of SCRIPT; its batch comes by itself, since a larger one is another script. cells: changes
    that are expected together."""

    name: str
    title: str
    options: str
    batch: int
    cells: Sequence[Sequence[str]]


CASES = (
    Case(
        name="olmo_3x896",
        title="OLMo of Transformers, 16 layers of width 1,024, 3 x 896 tokens",
        options="--kind olmo --layers 16 --width 1024 --heads 16 --vocabulary 32000 --tokens 896",
        batch=3,
        cells=(("tf32",), ("bf16",), ("fused_adamw",), ("bf16", "fused_adamw"), ("tf32", "fused_adamw")),
    ),
    Case(
        name="phi_4x768",
        title="Phi of Transformers, 12 layers of width 1,024, 4 x 768 tokens",
        options="--kind phi --width 1024 --heads 16 --vocabulary 51200 --tokens 768",
        batch=4,
        cells=(("tf32",), ("bf16",), ("fused_adamw",), ("bf16", "fused_adamw"), ("tf32", "fused_adamw")),
    ),
    Case(
        name="gpt2_eager_8x384",
        title="GPT-2 of Transformers, eager attention, 8 x 384 tokens",
        options="--kind gpt2 --tokens 384 --attention eager",
        batch=8,
        cells=(("tf32",), ("bf16",), ("fused_attention",), ("bf16", "fused_attention"), ("padding",)),
    ),
    Case(
        name="electra_16x128",
        title="ELECTRA base of Transformers, 16 x 128 tokens",
        options="--kind electra --tokens 128 --vocabulary 30522",
        batch=16,
        cells=(("tf32",), ("bf16",), ("fused_adamw",), ("bf16", "fused_adamw"), ("tf32", "fused_adamw")),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("expect", "measure", "add"))
    parser.add_argument("--commit", help="of this code, with `expect`")
    parser.add_argument("--out", type=Path, help="file for what is expected or measured")
    parser.add_argument("--from", dest="found", type=Path, help="such a file, with `add`")
    parser.add_argument("--seconds", type=float, default=480.0, help="that are left (480)")
    args = parser.parse_args()
    wanted = {"expect": ("commit", "out"), "measure": ("out",), "add": ("found",)}[args.what]
    if any(getattr(args, name) is None for name in wanted):
        parser.error(f"{args.what} needs {' and '.join(wanted)}")
    if args.what == "expect":
        write_each(args.out, args.seconds, ((expect, case, args.commit) for case in CASES))
    elif args.what == "measure":
        expected = {script["name"]: script for script in read(EXPECTED)["scripts"]}
        known = [case for case in CASES if case.name in expected]
        write_each(args.out, args.seconds, ((measure, case, expected[case.name]) for case in known))
    else:
        scripts = read(args.found)["scripts"]
        add(scripts, MEASURED if "measured" in scripts[0]["cells"][0] else EXPECTED)


def read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def write(file: Path, content: Mapping[str, Any]) -> None:
    text = NESTED.sub("", json.dumps(content, indent=1))
    file.write_text(text + "\n", encoding="utf-8")


def add(scripts: Sequence[Any], file: Path) -> None:
    """Add scripts to a ledger. Raises SystemExit if one is there already."""
    ledger = read(file)
    names = {script["name"] for script in ledger["scripts"]}
    if twice := [script["name"] for script in scripts if script["name"] in names]:
        sys.exit(f"{file} has {', '.join(twice)} already")
    write(file, ledger | {"scripts": [*ledger["scripts"], *scripts]})


def write_each(out: Path, seconds: float, calls: Any) -> None:
    """Call one function after another, and write what they return each time. None starts for which there is less time
    than the longest took."""
    end, longest = time.monotonic() + seconds, 0.0
    scripts: list[dict[str, Any]] = []
    for function, case, given in calls:
        if time.monotonic() + longest > end:
            print(f"no time for {case.name}")
            continue
        began = time.monotonic()
        scripts.append(function(case, given))
        longest = max(longest, time.monotonic() - began)
        write(out, {"scripts": scripts})
        print(f"{case.name}: {time.monotonic() - began:.0f} s", flush=True)


def name_command(case: Case, batch: int) -> list[str]:
    return [sys.executable, SCRIPT, *case.options.split(), "--batch", str(batch)]


@contextmanager
def start(case: Case, batch: int):
    """A process of a script in which changes take turns."""
    changes = sorted({name for cell in case.cells for name in cell} - {LARGER_BATCH})
    with tempfile.TemporaryDirectory() as folder:
        script = TunedScript(
            command=name_command(case, batch),
            folder=Path(folder),
            log=Path(folder, "log.txt"),
            skip=5,
            steps=5,
            step="auto",
            seed=0,
        )
        turns = TurnsProcess(script, changes)
        try:
            yield turns
        finally:
            turns.end()


def find_kernels(shares: Mapping[str, Any]) -> dict[str, float]:
    """Return the times of kernels by kind; without a GPU, the step is its parts."""
    return shares["kernels"] or {"busy": shares["step_ns"]}


def expect(case: Case, commit: str) -> dict[str, Any]:
    """Return a script with the steps that are expected with changes."""
    with start(case, case.batch) as turns:
        facts = turns.ask({"kind": "describe"})
        shares = turns.ask({"kind": "profile", "variant": []})
        rows = find_input({"steps": [], **facts})["shape"]
        step = turns.ask({"kind": "calls"}) | {"rows": rows[0] if rows else None, "factor": TWICE}
        parts = StepParts(step, shares, lambda parts: turns.ask({"kind": "parts", "parts": parts}))
        cells = []
        for changes in case.cells:
            if (expected := parts.predict(changes)) and not facts["obstacles"].keys() & {*changes}:
                ends = {name: round(value) for name, value in vars(expected).items()}
                cells.append({"changes": [*changes], "predicted": {"at": time.time()} | ends})
        return {
            "name": case.name,
            "commit": commit,
            "title": case.title,
            "command": " ".join(["python3", *name_command(case, case.batch)[1:]]),
            "gpu": facts["gpu_name"],
            "torch": facts["torch"],
            "step_ns": round(shares["step_ns"]),
            "kernels_ns": round(find_kernels(shares)["busy"]),
            "issue_ns": {name: round(time_ns) for name, time_ns in shares["issue"].items()},
            "num_calls": len(step["calls"]),
            "cells": cells,
            "written_at": time.time(),
        }


def measure(case: Case, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return an expected script with what was measured of each change."""
    cells = {tuple(cell["changes"]): cell for cell in expected["cells"]}
    switched = [changes for changes in cells if LARGER_BATCH not in changes]
    measured: dict[tuple[str, ...], dict[str, Any]] = {}
    if switched:
        with start(case, case.batch) as turns:
            measured |= measure_by_turns(turns, switched)
    if (LARGER_BATCH,) in cells:
        measured[(LARGER_BATCH,)] = measure_larger_batch(case)
    return {**expected, "cells": [cell | {"measured": measured[changes]} for changes, cell in cells.items()]}


def measure_by_turns(turns: TurnsProcess, variants: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], Any]:
    request = {"kind": "turns", "rounds": NUM_ROUNDS, "turn_s": TURN_S, "seed": 0}
    rounds = turns.ask(request | {"variants": [[], *map(list, variants)]})["rounds"]
    at = time.time()
    base, *others = zip(*rounds)
    measured = {}
    for changes, times in zip(variants, others):
        kernels = find_kernels(turns.ask({"kind": "profile", "variant": list(changes)}))
        measured[changes] = describe(at, base, times, kernels)
    return measured


def measure_larger_batch(case: Case) -> dict[str, Any]:
    """Measure a batch of twice the size, for as many samples, in processes of both sizes that alternate."""
    base, larger, kernels = [], [], {}
    for _ in range(NUM_PAIRS):
        with start(case, case.batch) as turns:
            base.append(turns.ask({"kind": "profile", "variant": []})["step_ns"])
        with start(case, TWICE * case.batch) as turns:
            shares = turns.ask({"kind": "profile", "variant": []})
            larger.append(shares["step_ns"] / TWICE)
            kernels = {kind: time_ns / TWICE for kind, time_ns in find_kernels(shares).items()}
    return describe(time.time(), base, larger, kernels, SPREAD_OF_CPU)


def describe(at: float, base: Sequence[float], times: Sequence[float], kernels: Mapping[str, float], spread=0.0):
    ratio = compare_rounds(base, times, spread)
    ends = {name: round(getattr(ratio, name), 4) for name in ("times_as_fast", "low", "high")}
    steps = {"step_ns": round(median(times)), "base_ns": round(median(base)), "kernels_ns": round(kernels["busy"])}
    by_kind = {kind: round(time_ns) for kind, time_ns in kernels.items() if time_ns and kind != "busy"}
    return {"at": at} | ends | steps | {"kernels": by_kind}


if __name__ == "__main__":
    main()
