"""Measure a user's training script: start it unchanged, follow it from inside (see `jobs.follow.follow`), and capture
some of its steps with nsys, or time them with CUDA events where there is no nsys. It leaves the files of a sweep of one
run, so that everything that reads results reads these, too."""

import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from profiler_job.jobs.contract.changes import CHANGES, COMPILE
from profiler_job.jobs.contract.compiling import CompilingRecord
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.find_nsys import NSYS_MISSING
from profiler_job.jobs.contract.integrity import add_digest, clear, read_all_facts, restore, sync
from profiler_job.jobs.contract.layout import (
    CAPTURE,
    COMPILING,
    HOST_WAITS,
    NSYS_LOG,
    RAW,
    RECORD,
    REPORT,
    SAMPLES,
    SCHEMA_VERSION,
    SCRIPT,
    SWEEP,
    TIMINGS,
    FinishedRecord,
)
from profiler_job.jobs.contract.outputs import is_profiled_script, replace_folder
from profiler_job.jobs.contract.words import format_count
from profiler_job.jobs.executor.collectors import NOT_SAMPLED, TRACED
from profiler_job.jobs.executor.failures import CollectorError, describe_exit, describe_progress
from profiler_job.jobs.executor.machine import hash_machine_names, read_machine_facts
from profiler_job.jobs.executor.nsys_cli import (
    NsysLog,
    count_kernels_and_steps,
    count_steps_of_processes,
    export,
    kill_group,
)
from profiler_job.jobs.executor.python_samples import (
    BUSY,
    LEAST_IDLE,
    LOCK_TRACED,
    NO_GIL,
    NO_SAMPLES,
    SAMPLED,
    explain_no_samples,
    keep_samples,
    list_noted_calls,
    list_wait_scalars,
    measure_waiting_share,
    runs_other_threads,
)
from profiler_job.jobs.executor.result_store import read_json
from profiler_job.jobs.executor.script_compiling import build_compiling
from profiler_job.jobs.executor.script_loops import NAMED_STEPS, Loop, find_unmeasured_loops
from profiler_job.jobs.executor.script_memory import list_scalars
from profiler_job.jobs.executor.script_streams import start_under_nsys
from profiler_job.jobs.executor.script_traces import keep_traces
from profiler_job.jobs.executor.stop import SHUTDOWN_S
from profiler_job.jobs.executor.worker_process import kill_processes_with

INJECTED = Path(__file__).resolve().parents[1] / "follow"
FOLLOW = "PROFILER_JOB_FOLLOW"
FOLLOWED = "followed"
MODULES = "modules.json"
"""File of a run with the times of its modules, if events timed them."""
FEWEST_STEPS = 2
STAGES = 3
"""Stages that are measured: timed, captured, and captured with modules."""
FOLLOWED_STEPS = 2
"""The first of them may differ from the measured steps, as where it loads what only following needs."""

STARTED_AGAIN = "the script is started once more, for samples of its Python (--no-samples leaves them out)"
NSYS_PRINTED = "nsys.printed"
PROGRESS = "progress"
"""File in which the first rank of a script notes how far it is."""
POLL_S = 0.5
NO_STEP_S = 60.0
NO_STEP = {
    "": "no step yet after {:.0f} s",
    "compiling": "no step yet after {:.0f} s; the script calls torch.compile, which may take minutes",
}
STAGE_WORDS = {
    "timed": "the skipped steps are over; steps are timed",
    "captured": "steps are captured",
    "followed": "steps are captured with their modules",
}
STAGE_WORDS_OF_EVENTS = STAGE_WORDS | {"captured": "phases are timed", "followed": "modules are timed"}

DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float64": "fp64"}


@dataclass(frozen=True, kw_only=True)
class Script:
    """command: as given. name: of its results. events: CUDA events time its phases and modules, in place of a capture.
    trace: torch.profiler captures its steps, in place of nsys. before: steps of other loops, before those that are
    skipped. The rest is explained at `jobs.follow.plan.Plan`."""

    command: Sequence[str]
    name: str
    skip: int
    steps: int
    step: str
    goes_on: bool
    events: bool = False
    trace: bool = False
    before: int = 0
    prefills: int = STAGES
    samples: bool = False

    @property
    def with_nsys(self) -> bool:
        return not (self.events or self.trace)

    @property
    def num_needed(self) -> int:
        return self.skip + 2 * self.steps + FOLLOWED_STEPS


class ScriptFailedError(ProfilerError):
    """Error when nothing of a script can be recorded, with the reason and what to do."""

    exit_code = ExitCode.FAILED


class TooFewStepsError(ScriptFailedError):
    """A script ended without an error before it took the steps that are needed. seen: how many it took. num_prefills:
    how many of them began a text; 0 if it generates none."""

    def __init__(self, message: str, seen: int, num_prefills: int = 0):
        super().__init__(message)
        self.seen, self.num_prefills = seen, num_prefills


class LoopsFoundError(ScriptFailedError):
    """The steps of a script are not updates of an optimizer, and `loops`, those that it has, can each be measured."""

    def __init__(self, message: str, loops: list[Loop]):
        super().__init__(message)
        self.loops = loops


class CannotStartError(ProfilerError):
    """Error when the command of a script starts no program."""

    def __init__(self, command: Sequence[str], reason: str = ""):
        word = command[0]
        why = reason or ("is not executable" if os.path.isfile(word) else "is not a program on this machine")
        if word.endswith(".py"):
            fix = f"put python before it: {shlex.join(['python', *command])}"
        elif word == "python" and shutil.which("python3"):
            fix = f"its name is python3 here: {shlex.join(['python3', *command[1:]])}"
        else:
            fix = "give the command as you type it in a shell"
        super().__init__(f"{word} {why}; {fix}")


def measure(script: Script, results: Path) -> tuple[Path, dict[str, Any]]:
    """Run the script and leave RESULTS/<name> as a sweep of one run, in place of an older one. Returns that folder, and
    what was noted of the script by its first rank, with `exit_code`.

    Raises CannotStartError, ScriptFailedError, CollectorError without nsys, KeyboardInterrupt when told to end, and
    OSError.
    """
    if script.with_nsys and shutil.which("nsys") is None:
        raise CollectorError(f"{NSYS_MISSING}; `profile --collector torch` takes torch.profiler in place of it")
    restore(results / script.name)
    draft = results / f".{script.name}.draft"
    clear(draft)
    run = draft / script.name
    run.mkdir(parents=True)
    started, began = datetime.now(UTC), time.monotonic()
    try:
        code = run_followed(script, run)
        ranks = read_noted(draft / FOLLOWED)
        explain_shortage(script, run, ranks, code)
    except BaseException:
        if not (run / NSYS_LOG).is_file():  # what nsys printed may say why, and a message names it
            clear(draft)
        raise
    noted = ranks[0]
    num_captured = 0
    if script.with_nsys:
        num_captured = export_capture(run, ranks)
        keep_report(run / REPORT, results / RAW / script.name)
        noted["samples"] = measure_samples(script, run, noted)
        write_json(run / HOST_WAITS, list_noted_calls(ranks, find_folder(script)) | {"samples": noted["samples"]})
    elif script.trace:
        num_captured = keep_traces(draft / FOLLOWED, run, ranks)
    else:
        write_json(run / MODULES, [{"rank": noted["rank"]} | row for noted in ranks for row in noted["modules"]])
    write_json(run / TIMINGS, build_timings(ranks))
    compiling = CompilingRecord(ranks=[build_compiling(each, find_folder(script)) for each in ranks])
    if any(each.graphs is not None for each in compiling.ranks):
        write_json(run / COMPILING, compiling.model_dump())
    shutil.rmtree(draft / FOLLOWED)
    record = FinishedRecord(
        schema_version=SCHEMA_VERSION,
        run_id=script.name,
        status="ok",
        run=build_run(noted),
        machine=read_machine_facts({name: noted[name] for name in MACHINE}, with_nsys=script.with_nsys),
        started_at=started.isoformat(timespec="seconds"),
        ended_at=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_s=round(time.monotonic() - began, 3),
        warmup_steps=script.skip,
        measured_steps=len(noted["steps"]),
        profiled_steps=num_captured,
        num_parameters=noted["num_parameters"],
        autograd_multithreading=noted["autograd_multithreading"],
        float32_matmul_precision=noted["float32_matmul_precision"],
        hashed_names=hash_machine_names(),
        shared_id=noted["shared_id"],
        files=read_all_facts(file for file in run.iterdir() if file.is_file()),
    )
    write_json(run / RECORD, add_digest(record.model_dump(mode="json")))
    write_json(draft / SWEEP, {"sweep": script.name, SCRIPT: True, "runs": [script.name]})
    replace_folder(draft, results / script.name, is_profiled_script)
    return results / script.name, noted | {"exit_code": code, "compiling": compiling.ranks[0]}


def measure_samples(script: Script, run: Path, noted: dict[str, Any]) -> dict[str, Any]:
    """Start the script once more, with samples of Python in its captured steps, and leave their capture in the folder
    of the run. Return `captured_ns`, how long each of these steps took, and `num_samples`; or `why_not`, the reason why
    there are none."""
    if not script.samples:
        return {"why_not": ""}
    waiting = measure_waiting_share(run / CAPTURE)
    if waiting < LEAST_IDLE:
        return {"why_not": BUSY.format(100 * LEAST_IDLE)}
    if not noted.get("has_gil", True):
        return {"why_not": NO_GIL}
    print(f"profiler-job: the GPU waits {waiting:.0%} of the steps: {STARTED_AGAIN}", file=sys.stderr, flush=True)
    folder = run.parent / "sampled" / script.name
    folder.mkdir(parents=True)
    try:
        sampled = (LOCK_TRACED if runs_other_threads(noted) else TRACED[0], *SAMPLED)
        code = run_followed(dataclasses.replace(script, goes_on=False), folder, sampled)
        ranks = read_noted(folder.parent / FOLLOWED)
        if not (folder / REPORT).is_file() or any(rank["stage"] != "done" for rank in ranks) or not ranks:
            return {"why_not": explain_no_samples(quote_last_lines(folder / NSYS_LOG), code)}
        database = export(folder / REPORT, log=NsysLog(folder / NSYS_LOG), with_samples=True)
        num_samples = keep_samples(database, find_folder(script))
        if not num_samples:
            return {"why_not": NO_SAMPLES}
        shutil.move(database, run / SAMPLES)
        return {"captured_ns": ranks[0]["captured_ns"], "num_samples": num_samples}
    except CollectorError as error:
        return {"why_not": str(error)}
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


def find_folder(script: Script) -> Path:
    """Find the folder of a script, to which paths of its files are relative: of the first file that its command names,
    or else the current one."""
    files = (Path(part) for part in script.command if part.endswith(".py"))
    return next((file.resolve().parent for file in files if file.is_file()), Path.cwd())


MACHINE = ("gpu_name", "gpu_memory_bytes", "cuda", "torch", "python")


def export_capture(run: Path, ranks: list[dict[str, Any]]) -> int:
    """Export the report of nsys in the folder of a run and return the number of captured steps. Raises
    ScriptFailedError if it does not hold the steps of all ranks."""
    try:
        database = export(run / REPORT, log=NsysLog(run / NSYS_LOG))
    except CollectorError as error:
        raise ScriptFailedError(f"the capture cannot be read: {error} (see {run / NSYS_LOG})") from None
    num_kernels, _ = count_kernels_and_steps(database)
    if not num_kernels:
        raise ScriptFailedError(
            f"nsys recorded no kernel: on {ranks[0]['gpu_name']} the script launched none in its steps"
        )
    num_steps = count_steps_of_processes(database)
    if len(ranks) > 1 and len(num_steps) != len(ranks):
        raise ScriptFailedError(
            f"nsys recorded steps of {format_count(len(num_steps), 'process')}, and {len(ranks)} took them"
        )
    return max(num_steps, default=0)


def run_followed(script: Script, folder: Path, sampled: tuple[str, ...] = ()) -> int:
    """Run the script, in a capture that it begins and ends itself unless events time it; its exit code. What it prints
    goes where this program's output goes. sampled: options of nsys, in place of what it traces, with which it samples
    Python; then modules are not followed."""
    plan = {
        "out": str((folder.parent / FOLLOWED).absolute()),
        "skip": script.before + script.skip,
        "steps": script.steps,
        "followed": 0 if sampled else FOLLOWED_STEPS,
        "step": script.step,
        "goes_on": script.goes_on,
        "events": script.events,
        "trace": script.trace,
        "prefills": script.prefills,
        "samples": bool(sampled),
    }
    path = os.pathsep.join(filter(None, (str(INJECTED), os.environ.get("PYTHONPATH"))))
    followed = json.dumps(plan)
    environment = os.environ | {FOLLOW: followed, "PYTHONPATH": path}
    ranged = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop")
    output = ("--force-overwrite=true", f"--output={(folder / REPORT).absolute()}")
    # A session of its own: a signal to this program's group reaches the script once, from here.
    if not script.with_nsys:
        try:
            process = subprocess.Popen(script.command, env=environment, start_new_session=True)
        except OSError as error:
            raise CannotStartError(script.command, f"cannot be started ({error.strerror or error})") from None
    else:
        traced = (*(sampled or TRACED[:1]), *TRACED[1:])
        nsys = ("nsys", "profile", *traced, *NOT_SAMPLED, *ranged, *output)
        process = start_under_nsys(nsys, script.command, environment, folder / NSYS_PRINTED)
    try:
        words = STAGE_WORDS_OF_EVENTS if script.events else STAGE_WORDS
        return wait_for_script(process, folder.parent / FOLLOWED / PROGRESS, words)
    except BaseException:
        end_group(process, followed)
        raise
    finally:
        keep_printed(folder)


def wait_for_script(process: subprocess.Popen[bytes], progress: Path, words: Mapping[str, str] = STAGE_WORDS) -> int:
    """Wait for the end of a script, and return its exit code. Print how far it is: each stage, and that there is no
    step yet, after NO_STEP_S and then each time that takes twice as long. progress: file that its first rank writes.
    words: what is printed of each stage."""
    began, said, next_s = time.monotonic(), "", NO_STEP_S
    while True:
        try:
            return process.wait(POLL_S)
        except subprocess.TimeoutExpired:
            stage = read_progress(progress)
        waited = time.monotonic() - began
        if stage in NO_STEP and waited >= next_s:
            print(f"profiler-job: {NO_STEP[stage].format(waited)}", file=sys.stderr, flush=True)
            next_s *= 2
        elif stage != said and stage in words:
            print(f"profiler-job: {words[stage]}", file=sys.stderr, flush=True)
        said = stage


def read_progress(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def keep_printed(folder: Path) -> None:
    """Move what nsys printed to the log of its commands, without folders of the machine."""
    printed = folder / NSYS_PRINTED
    with suppress(OSError):
        NsysLog(folder / NSYS_LOG)("profile", printed.read_text(encoding="utf-8", errors="replace"))
        printed.unlink()


def end_group(process: subprocess.Popen[bytes], followed: str) -> None:
    """Have nsys and the script end, or else kill them, and the ranks, which may be of other groups; at once where a
    second signal comes. All of them have `followed` in their environment."""
    try:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGINT)
            process.wait(SHUTDOWN_S)
    finally:
        kill_group(process.pid)
        kill_processes_with(FOLLOW, followed)
        process.wait()


def read_noted(folder: Path) -> list[dict[str, Any]]:
    """Read what each rank of the script noted, in the order of ranks; empty if nothing was noted."""
    noted = [read_json(file, dict) for file in folder.glob("*.json")]
    return sorted(filter(None, noted), key=itemgetter("rank"))


def explain_shortage(script: Script, run: Path, ranks: list[dict[str, Any]], code: int) -> None:
    """Check that there is a capture to read. Raises ScriptFailedError with the reason."""
    ended = f"`{shlex.join(script.command)}` ended ({describe_exit(code)})"
    if refused := next((noted["refused"] for noted in ranks if "refused" in noted), ""):
        raise ScriptFailedError(f"`{shlex.join(script.command)}` cannot be profiled: {refused}")
    if code and not ranks:
        when = describe_progress(read_progress(run.parent / FOLLOWED / PROGRESS), script)
        raise ScriptFailedError(f"{ended} {when}: what it printed says why")
    if not ranks and script.step not in NAMED_STEPS:
        raise ScriptFailedError(
            f"{ended} and closed no NVTX range `{script.step}`: give --step the name of one that it has"
        )
    if not ranks:
        raise ScriptFailedError(
            f"{ended}, but never called optimizer.step() or a model: give --step the name of an NVTX range of the "
            "script; Python's -I and -E hide the profiler from it, and processes that it forks are not followed: start "
            "them by spawn"
        )
    is_lacking = len(ranks) < ranks[0]["ranks"] or any(noted["stage"] != "done" for noted in ranks)
    if not is_lacking and script.with_nsys and not (run / REPORT).is_file():
        raise ScriptFailedError(
            f"nsys captured the steps, but wrote no report: {quote_last_lines(run / NSYS_LOG)}; `profiler-job doctor`"
            " checks nsys, and `profile --collector torch` measures without it"
        )
    if is_lacking:
        seen = min(noted["seen"] for noted in ranks)
        if loops := find_unmeasured_loops(script.step, ranks[0], code):
            raise LoopsFoundError(f"{ended}: no optimizer ends the steps of this script", loops)
        seen = max(0, seen - script.before)
        if code:
            raise ScriptFailedError(
                f"{ended} after {seen} of the {script.num_needed} steps that are needed: what it printed says why"
            )
        parts = f"{script.skip} skipped, {script.steps} timed, {script.steps} profiled, {FOLLOWED_STEPS} with modules"
        raise TooFewStepsError(
            f"{ended} after {seen} steps, and {script.num_needed} are needed ({parts}): let it run longer, or "
            "give smaller --skip and --steps",
            seen,
            ranks[0]["num_prefills"],
        )
    if loops := find_unmeasured_loops(script.step, ranks[0], code):
        raise LoopsFoundError("the script has several loops", loops)


def plan_loop(script: Script, loop: Loop) -> Script | None:
    """Return the script with the plan for one of its loops; None if the loop is too short for the numbers of steps."""
    step, before = loop["kind"], loop["before"]
    of_loop = dataclasses.replace(script, step=step, before=before, prefills=0)
    if loop["num"] >= script.num_needed:
        return of_loop
    return shorten(of_loop, loop["num"])


def quote_last_lines(log: Path) -> str:
    """Return what nsys complained of, or else the last line that it printed."""
    try:
        lines = [line.partition(": ")[2] for line in log.read_text(encoding="utf-8").splitlines()]
    except OSError:
        lines = []
    complaints = [line for line in lines if "rror" in line or "nable" in line]
    return " ".join(complaints or lines[-1:]) or "it printed nothing"


def shorten(script: Script, seen: int, num_prefills: int = 0) -> Script | None:
    """Return the script with as few skipped and measured steps as it takes in all; None if these are too few for two
    of each kind. Where it generates text, as many stages begin with a prefill as it has texts for."""
    prefills = min(STAGES - 1, max(0, num_prefills - 1))
    if seen >= script.num_needed and prefills < script.prefills:
        return dataclasses.replace(script, prefills=prefills)
    steps = min(script.steps, max(FEWEST_STEPS, (seen - FOLLOWED_STEPS) // 3))
    skip = min(script.skip, seen - FOLLOWED_STEPS - 2 * steps)
    return None if skip < 1 else dataclasses.replace(script, skip=skip, steps=steps)


def build_timings(ranks: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The tables of timings.json, by rank."""
    tables: dict[str, list[dict[str, Any]]] = {"steps": [], "memory": [], "figures": []}
    for noted in ranks:
        walls = [step["wall_ns"] for step in noted["steps"]]
        sequences, tokens = infer_batch(noted)
        scalars = {"sequences_per_step": sequences, "tokens_per_step": tokens, "forwards_per_step": noted["forwards"]}
        scalars["flops_per_step"] = noted.get("flops_per_token", 0.0) * tokens
        scalars = {name: value for name, value in scalars.items() if value}
        scalars |= add_up_generation(noted["steps"])
        scalars |= list_wait_scalars(noted)
        memory: dict[str, dict[str, Any]] = {}
        for row in noted["memory"]:  # a phase may come several times in a step, as where gradients are accumulated
            known = memory.setdefault(row["phase"], row)
            for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
                known[name] = max(known[name], row[name])
            known["allocated_after_bytes"] = row["allocated_after_bytes"]
        rows = {
            "steps": [{"step": i, "phase": "step", "wall_ns": wall} for i, wall in enumerate(walls)]
            + add_up_phases(noted.get("phases", ())),
            "memory": memory.values(),
            "figures": [{"figure": name, "unit": "", "value": value} for name, value in scalars.items()]
            + [{"figure": name, "unit": "bytes", "value": value} for name, value in list_scalars(noted).items()],
        }
        for name, of_rank in rows.items():
            tables[name] += [{"rank": noted["rank"]} | row for row in of_rank]
    return tables


def add_up_phases(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add up what events timed of a phase that comes several times in a step, as where gradients are accumulated."""
    times: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows:
        known = times.setdefault((row["step"], row["phase"]), {"wall_ns": 0, "issue_ns": 0})
        for name in known:
            known[name] += row[name]
    return [{"step": step, "phase": phase} | known for (step, phase), known in times.items()]


def infer_batch(noted: dict[str, Any]) -> tuple[int, int]:
    """Infer the sequences (or samples) and tokens of one step, from the model's first input in the calls that train. 0
    if not known; tokens are known for inputs of integers, [sequences, tokens]."""
    first = find_input(noted)
    shape = first["shape"]
    if not shape or noted.get("trained_models", 1) > 1:  # the inputs of several models are not added up
        return 0, 0
    if any(step.get("kind") for step in noted["steps"]):  # a decode step makes a token of each sequence
        return shape[0], shape[0]
    if "sequences" in noted:
        return noted["sequences"], noted["tokens"]
    is_text = "int" in first["dtype"] and len(shape) == 2
    return shape[0] * noted["forwards"], shape[0] * shape[1] * noted["forwards"] if is_text else 0


def find_input(noted: dict[str, Any]) -> dict[str, Any]:
    """Find the input that shows the batch: the first one with a shape, or the first matrix of tokens where text is
    generated. Without one its shape is empty."""
    has_generated = any(step.get("kind") for step in noted["steps"])
    for each in noted["inputs"]:
        is_matrix = "int" in each["dtype"] and len(each["shape"]) == 2
        is_other = "mask" in (name := each.get("name", "")) or "position" in name
        if is_matrix and not is_other if has_generated else each["shape"]:
            return dict(each)
    return {"shape": [], "dtype": ""}


def infer_context(noted: dict[str, Any]) -> int:
    """Infer the tokens of a sequence, or of a prompt; 0 if not known."""
    sequences, tokens = infer_batch(noted)
    if any(step.get("kind") for step in noted["steps"]):
        return int(find_input(noted)["shape"][1])
    return tokens // sequences if sequences else 0


def add_up_generation(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Return the scalars of the timed steps of a script that generates text: `<kind>_ns`, the median time of a step,
    and `<kind>_tokens_per_s`."""
    scalars: dict[str, float] = {}
    for kind in ("prefill", "decode"):
        if of_kind := [step for step in steps if step.get("kind") == kind]:
            walls = [step["wall_ns"] for step in of_kind]
            scalars[f"{kind}_ns"] = median(walls)
            scalars[f"{kind}_tokens_per_s"] = sum(step["tokens"] for step in of_kind) * 1e9 / sum(walls)
    return scalars


def build_run(noted: dict[str, Any]) -> dict[str, Any]:
    """The axes of a run, as far as the script tells them."""
    sequences, _ = infer_batch(noted)
    without = "forward_backward" if noted["num_backward"] else "forward"
    return {
        "size": noted["model"] or SCRIPT,
        "gpus": noted["world"],
        "context_length": infer_context(noted),
        "batch_size": sequences,
        "mode": "train_step" if noted["optimizers"] else without,
        "precision": infer_precision(noted),
        "attention": "",
        "compile": CHANGES[COMPILE].value if noted["compiled"] else "off",
        "optimizer": ", ".join(noted["optimizers"]),
        "num_parameters": noted["num_parameters"],
        "workload": SCRIPT,
    }


def infer_precision(noted: dict[str, Any]) -> str:
    """Return the precision of autocast, or else of most parameters."""
    dtypes = noted["parameter_dtypes"]
    dtype = noted["autocast"] or max(dtypes, key=dtypes.__getitem__, default="")
    plain = "fp32" if noted["float32_matmul_precision"] == "highest" else "tf32"
    return DTYPES.get(dtype, plain)


def keep_report(report: Path, raw: Path) -> None:
    """Move nsys's own report to where nothing is published from: it holds the script's environment and arguments."""
    raw.mkdir(parents=True, exist_ok=True)
    shutil.move(report, raw / f"{raw.name}{report.suffix}")


def write_json(path: Path, content: dict[str, Any] | list[dict[str, Any]]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    sync(path)
