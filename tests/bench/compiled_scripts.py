"""Show on a GPU that compiled scripts compute the same under `profile`, and that their kernels have modules.

    python -m tests.bench.compiled_scripts --out cases.jsonl [--seconds 480] [llmc:regional ...]

Each case is a script (`compiled_model`) that runs alone, and then under `profile` with nsys. A line of JSON for each:
the kernel time of a step and the part of it in a module, whether the losses are the same to the bit, what graphs broke
and were compiled again, and the first advice. No case starts for which there is less time than the longest took. The
captures are kept in --captures.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.summary import summarise

SCRIPT = Path(__file__).with_name("compiled_model.py")
CASES = ("llmc:reduce-overhead", "llmc:regional", "gpt2:reduce-overhead", "nano:reduce-overhead", "llama:regional")
CASES += ("nano:broken", "llmc:default", "gpt2:regional", "nano:regional", "llama:reduce-overhead")
SKIP, PROFILED = 8, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="KIND:MODE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--captures", type=Path)
    parser.add_argument("--seconds", type=float, default=480.0, help="that are left (480)")
    args = parser.parse_args()
    end, longest = time.monotonic() + args.seconds, 0.0
    with tempfile.TemporaryDirectory() as temporary, args.out.open("w", encoding="utf-8") as file:
        for case in args.cases:
            if time.monotonic() + longest > end:
                print(f"no time for {case}")
                continue
            began = time.monotonic()
            folder = (args.captures or Path(temporary)).absolute() / case.replace(":", "-")
            folder.mkdir(parents=True)
            found = run_case(case, folder)
            longest = max(longest, time.monotonic() - began)
            file.write(json.dumps({"case": case, "took_s": round(time.monotonic() - began)} | found) + "\n")
            file.flush()
            print(f"{case}: {found.get('in_modules', found.get('error'))}", flush=True)


def run_case(case: str, folder: Path) -> dict[str, Any]:
    """Run a script alone and under `profile`, and compare. Of one that fails: the end of what it printed."""
    kind, mode = case.split(":")
    alone, under = folder / "alone.txt", folder / "under.txt"
    script = [str(SCRIPT), "--kind", kind, "--mode", mode, "--losses"]
    profile = [sys.executable, "-m", "profiler_job", "profile", "--no-samples", "--results", str(folder / "results")]
    profile += ["--skip", str(SKIP), "--steps", str(PROFILED), "--", sys.executable, *script, str(under)]
    for command in ([sys.executable, *script, str(alone)], profile):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            return {"error": done.stdout[-2000:]}
    [capture] = folder.rglob("profile.sqlite")
    return compare_losses(alone, under) | describe_capture(capture)


def compare_losses(alone: Path, under: Path) -> dict[str, Any]:
    """Compare the losses of two processes, as far as both got: `profile` ends a script once it has what it needs."""
    losses = [file.read_text(encoding="utf-8").split() for file in (alone, under)]
    num_steps = min(map(len, losses))
    is_same = num_steps > SKIP + PROFILED and losses[0][:num_steps] == losses[1][:num_steps]
    return {"num_losses": num_steps, "same_losses": is_same}


def describe_capture(capture: Path) -> dict[str, Any]:
    """Describe what a capture shows of a compiled script."""
    summary = summarise(read(capture))
    modules, advice = summary.sections["modules"], summary.sections["advice"]
    is_unknown = modules["name"].astype(str).str.contains("(compiled)", regex=False)
    times = ["forward_ns", "backward_ns", "optimizer_ns", "total_ns"]
    known = modules.loc[~is_unknown, times].sum() / modules[times].sum()
    compiling = json.loads(capture.with_name("compiling.json").read_text(encoding="utf-8"))["ranks"][0]
    return {
        "kernel_ns": int(modules["total_ns"].sum()),
        "in_modules": {name.removesuffix("_ns"): round(part, 4) for name, part in known.items()},
        "advice": advice.loc[advice["reason"] == "", "change"].head(3).tolist(),
        **{name: compiling[name] for name in ("graphs", "late_graphs", "recompilations", "breaks", "errors")},
    }


if __name__ == "__main__":
    main()
