"""Turn a folder of captures into a recording in memory: the same tables as a sweep's, for the same questions."""

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd

from profiler_job.analysis.answers.capture_facts import RANGE, CaptureFacts, FactsError
from profiler_job.analysis.answers.capture_steps import BY_RANGES, CaptureSteps, find_steps
from profiler_job.analysis.answers.derived_modes import derive_modes
from profiler_job.analysis.answers.markdown_text import UNKNOWN, list_some
from profiler_job.analysis.answers.python_timings import ANY_CONTEXT, PythonTime, read_times
from profiler_job.analysis.capture import modules
from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture, ExportError
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.insight.capture_gaps import find_unmatched_ranges
from profiler_job.analysis.recording import store, table_schema
from profiler_job.analysis.recording.ingest import READING_CAPTURE, join_frames, make_capture_tables
from profiler_job.analysis.reference import gemm_names, kernel_families
from profiler_job.jobs.contract import ranges
from profiler_job.jobs.contract.axes import Run, find_default
from profiler_job.jobs.contract.exit_codes import ExitCode
from profiler_job.jobs.contract.handouts import Shape, count_parameters
from profiler_job.jobs.contract.modes import MODE_PHASES
from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.contract.printable import make_printable
from profiler_job.jobs.contract.words import format_count

LEAST_READ = 0.8
"""Part of the matmuls' time whose names must show one precision."""
_CASE = ("size", "context_length", "batch_size", "precision", "attention", "gpu_name")
_SCORES = (
    r"(computing[ _])?(attention[ _]|attn[ _])?(scores?|logits|weights_matmul)|"
    r"q_?k(\^?_?t)?([ _](matmul|scores|product))?"
)
_OUTPUT = (
    r"final[ _]matmul|(attention|attn)[ _](output|values?|matmul_v|pv)|(a|p|s)_?v([ _](matmul|product))?|"
    r"weighted[ _](sum|values?)"
)
PARTS = {
    ranges.SOFTMAX: re.compile(r"(computing[ _]|attention[ _]|attn[ _])?softmax", re.IGNORECASE),
    ranges.ATTENTION_SCORES: re.compile(_SCORES, re.IGNORECASE),
    ranges.ATTENTION_OUTPUT: re.compile(_OUTPUT, re.IGNORECASE),
}
"""Names that scripts give to the ranges of attention's parts; the hand-out's own are "computing attention scores",
"computing softmax" and "final matmul"."""


_LAYER = re.compile(r"(?:transformer[ _]?)?(?:layer|block)s?[ _.\-#]*(\d{1,4})", re.IGNORECASE)
"""Names of ranges around one layer of the model: all layers count as one module."""


@dataclass(kw_only=True)
class FolderRecording:
    """A folder of captures as a recording. notes: lines about each capture, by its name: what was left out, inferred or
    not known. sources: a row for each run, with the capture and where each of its facts is from. derived: runs that
    are a part of the steps of a larger mode -> that mode. refused: runs that no smaller mode is taken from -> why.
    num_unread: captures that could not be used."""

    recording: store.Recording
    notes: dict[str, list[str]]
    sources: pd.DataFrame
    derived: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    num_unread: int = 0


@dataclass(kw_only=True)
class _Part:
    """The steps of one mode in one capture."""

    facts: CaptureFacts
    mode: str
    run: dict[str, Any]
    tables: dict[str, pd.DataFrame]
    how: str = ""


def record_captures(
    folder: Path,
    captures: Sequence[CaptureFacts],
    phases: Mapping[str, str],
    emit: Callable[[str], None] = lambda line: None,
) -> FolderRecording:
    """Read captures and make one recording of them. phases: phases of ranges that the user names; emit gets a line for
    each capture that was read, and for what is wrong with it."""
    notes: dict[str, list[str]] = {}
    parts: list[_Part] = []
    num_unread, code = 0, ExitCode.DAMAGED
    for facts in captures:
        try:
            of_capture, lines = _read_parts(facts, dict(phases))
        except ExportError as error:
            reason = str(error).removeprefix(f"{facts.path}: ")
            of_capture, lines = _make_unread(facts, error.problem), [f"cannot be read: {reason}"]
            num_unread, code = num_unread + 1, error.exit_code
        parts += of_capture
        notes[facts.name] = lines
        for line in lines:
            emit(f"{facts.name}: {line}")
    if not any(part.tables for part in parts):
        lines = [*dict.fromkeys(line for said in notes.values() for line in said)]
        raise FactsError(f"no capture in {folder} can be used: {list_some(lines, most=2)}", exit_code=code)
    _fill_from_others(parts, notes)
    _name_workloads(parts)
    parts = _refuse_doubled(parts, notes, emit)
    num_gpu_names = len({part.run["gpu_name"] for part in parts})
    for part in parts:
        part.run["run_id"] = _name_run(part, has_gpu=num_gpu_names > 1)
    times, problems = read_times(folder)
    times = _fill_context(times, parts, problems)
    problems |= _find_unused(times, parts)
    for name, line in problems.items():
        notes.setdefault(name, []).append(line)
        emit(f"{name}: {line}")
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in table_schema.TABLES}
    for part in parts:
        run_id = part.run["run_id"]
        timed = _make_timer_steps(part, times)
        for name, frame in part.tables.items():
            tables[name].append(frame.assign(run_id=pd.Categorical([run_id] * len(frame), [run_id])))
        if len(timed):
            tables["steps"].append(timed)
        tables["runs"].append(_make_run_row(part.run))
    recording = _store_and_load({name: join_frames(name, frames) for name, frames in tables.items()}, folder.name)
    sources = pd.DataFrame([_describe_source(part) for part in parts])
    return add_derived(FolderRecording(recording=recording, notes=notes, sources=sources, num_unread=num_unread))


def add_derived(made: FolderRecording) -> FolderRecording:
    """Add the runs of modes that no capture has, as `derive_modes` makes them."""
    modes = derive_modes(made.recording)
    rows = made.sources.set_index("run_id").loc[[*modes.sources.values()]]
    named = modes.recording.runs.set_index(modes.recording.runs["run_id"].astype(str))["mode"].astype(str)
    rows = rows.assign(run_id=[*modes.sources], derived_from=rows["mode"], mode=named.loc[[*modes.sources]].to_numpy())
    sources = pd.concat(
        [made.sources.assign(derived_from=""), rows[[*made.sources, "derived_from"]]], ignore_index=True
    )
    return replace(made, recording=modes.recording, sources=sources, derived=modes.larger, refused=modes.refused)


# ------------------------------------------------------------------------------------------------------- one capture


def _read_parts(facts: CaptureFacts, phases: dict[str, str]) -> tuple[list[_Part], list[str]]:
    """Read one capture: a part for each mode that its steps have, and lines about it. Raises ExportError."""
    if facts.path is None or facts.known.get("status", "ok") != "ok":
        return _make_absent(facts), []
    capture = read(facts.path)
    stated = str(facts.known.get("mode", ""))
    placed_steps = find_steps(capture, phases, facts.known.get("warmup"), stated)
    problems = capture.problems | placed_steps.attribution.problems
    notes = [f"{what}: {consequence}" for what, consequence in problems.items()]
    notes += placed_steps.notes
    if from_ranges := [name for name, source in facts.where.items() if source == RANGE]:
        notes.append(f"its ranges gave {' and '.join(name.replace('_', ' ') for name in from_ranges)}")
    learned = _learn_from_kernels(capture)
    notes += _find_contradictions(facts.known, learned, capture)
    facts.learn(learned, "kernels")
    modes = placed_steps.modes
    is_cut_off = stated not in ("", ranges.FORWARD) and modes == [ranges.FORWARD] and len(placed_steps.steps) == 1
    if not modes or is_cut_off:
        if is_cut_off or not placed_steps.is_cut_off:
            notes.append(_explain_cut_off(stated) if is_cut_off else _explain_no_step(capture))
        status = "no_kernels" if not len(capture.kernels) else "failed"
        return _make_empty(facts, capture, stated, status, notes[-1]), notes
    if stated and stated not in modes:
        notes.append(f"is called {stated}, but its steps are {' and '.join(modes)}: counted as what they are")
    elif stated and len(modes) > 1:
        others = " and ".join(mode for mode in modes if mode != stated)
        notes.append(f"is called {stated}, and has steps of {others}, too: both count")
    if placed_steps.how != BY_RANGES:
        notes.append(f"no range marks a step: steps are from {placed_steps.how}")
    parts = [_make_part(facts, capture, placed_steps, mode) for mode in modes]
    num_gpus = capture.kernels[["process", "device"]].drop_duplicates().shape[0]
    if num_gpus > 1:
        notes.append(f"{format_count(num_gpus, 'GPU')}: times are of the slowest, kernel times sums over all")
    if not len(capture.kernels):
        notes.append("no kernels captured: only times of ranges on the host are known")
    duration = (capture.kernels["end_ns"] - capture.kernels["start_ns"]).to_numpy()
    if unmatched := find_unmatched_ranges(placed_steps.attribution, duration):
        example = f"--phase {quote(f'forward={unmatched[0]}')}"
        notes.append(f"its largest ranges match no phase ({', '.join(unmatched)}): name them, such as {example}")
    inferred = (placed_steps.attribution.kernels["attribution"] == "inferred").mean() if len(capture.kernels) else 0.0
    if inferred > 0.01:
        notes.append(f"{inferred:.0%} of its kernels are in no range of a phase: their phase is inferred")
    return parts, notes


def _explain_cut_off(stated: str) -> str:
    why = f"is called {stated}, but its only step ends in forward: not counted"
    return f'{why}; if it ran out of memory, give it status = "oom" in a file of facts'


def _explain_no_step(capture: Capture) -> str:
    names = capture.ranges["name"].astype(str).value_counts().head(3).index.tolist()
    what = f"its ranges are called {', '.join(names)}" if names else "it has no ranges"
    if not len(capture.kernels):
        return f"no kernels and no range of a phase ({what}): nothing can be answered"
    return f"no step found ({what}): name the ranges with --phase, such as --phase forward=NAME"


def _learn_from_kernels(capture: Capture) -> dict[str, Any]:
    """Return what kernels show: the precision of the matmuls, whether attention is fused, the GPU."""
    known: dict[str, Any] = {}
    names = [str(gpu["name"]) for gpu in capture.gpus if gpu.get("name")]
    if names:
        known["gpu_name"] = names[0]
    if not len(capture.kernels):
        return known
    codes = capture.kernels["kernel_name"].cat.codes.to_numpy()
    time = np.bincount(codes, (capture.kernels["end_ns"] - capture.kernels["start_ns"]).to_numpy())
    paths: dict[str, float] = {}
    total, fused = 0.0, 0.0
    for name, ns in zip(capture.kernels["kernel_name"].cat.categories, time):
        family = kernel_families.find_family(str(name))
        fused += ns if family == "attention" else 0.0
        if family == "gemm":
            total += ns
            gemm = gemm_names.parse(str(name))
            if gemm and gemm.math_path in PRECISIONS:
                paths[gemm.math_path] = paths.get(gemm.math_path, 0.0) + ns
    known["attention"] = "sdpa" if fused else "naive"
    if paths and max(paths.values()) >= LEAST_READ * total:
        known["precision"] = max(paths, key=paths.__getitem__)
    return known


def _find_contradictions(known: Mapping[str, Any], learned: Mapping[str, Any], capture: Capture) -> list[str]:
    """Find facts that what the capture shows contradicts: its matmuls, and ranges around all of its layers."""
    lines = []
    called, ran = known.get("precision"), learned.get("precision")
    if called and ran and called != ran:
        lines.append(f"is called {called}, but its matmuls ran in {ran}: counted as {called}")
    matches = [_LAYER.fullmatch(str(name).strip()) for name in capture.ranges["name"].unique()]
    layers = {int(match[1]) for match in matches if match}
    is_whole = bool(layers) and max(layers) - min(layers) + 1 == len(layers) and min(layers) in (0, 1)
    num_layers = known.get("num_layers")
    if is_whole and num_layers and len(layers) != num_layers:
        num_ranges, size = format_count(len(layers), "layer"), known["size"]
        lines.append(f"its ranges are of {num_ranges}, but {size} has {num_layers}: counted as {size}")
    return lines


def _make_part(facts: CaptureFacts, capture: Capture, placed_steps: CaptureSteps, mode: str) -> _Part:
    attribution = _number_steps(capture, placed_steps, mode)
    links = modules.link_modules(capture, attribution)
    tables = make_capture_tables(capture, attribution, links, "run")
    tables = {name: _rename_parts(frame) for name, frame in tables.items()}
    steps = placed_steps.steps[(placed_steps.steps["mode"] == mode) & (placed_steps.steps["number"] >= 0)]
    tables["steps"] = _add_whole_steps(tables["steps"], steps, capture)
    if steps["is_split"].any():  # the range is around all of them, so how long each takes on the host is not known
        tables["steps"] = tables["steps"].head(0)
    num_ranks = max(int(steps["process"].nunique()), 1)
    run = _make_run(facts, mode, num_ranks)
    run |= {
        "status": "ok" if len(capture.kernels) else "no_kernels",
        "profiled_steps": int(steps["number"].max()) + 1,
        "started_at": capture.recorded_at,
        "nsys": capture.nsys_version,
        "status_message": None if len(capture.kernels) else "the capture holds no kernels",
    }
    return _Part(facts=facts, mode=mode, run=run, tables=tables, how=placed_steps.how)


def _number_steps(capture: Capture, placed_steps: CaptureSteps, mode: str) -> Attribution:
    """Return the attribution with the steps of one mode, numbered from 0, and no others."""
    attribution = placed_steps.attribution
    steps = placed_steps.steps[(placed_steps.steps["mode"] == mode) & (placed_steps.steps["number"] >= 0)]
    placed = attribution.ranges
    step = _find_numbers(steps, placed["process"].to_numpy(), placed["start_ns"].to_numpy())
    is_step = placed["is_step"].to_numpy(bool) & (step >= 0) & (placed["step"] >= 0).to_numpy()
    changed = {"ranges": placed.assign(step=step, is_step=is_step)}
    for name in ("kernels", "memops", "graphs"):
        place = getattr(attribution, name)
        process = getattr(capture, name)["process"].to_numpy()
        changed[name] = place.assign(step=_find_numbers(steps, process, place["launch_ns"].to_numpy()))
        launched = (place["api"] >= 0).to_numpy()
        changed[name].loc[~launched, "step"] = place["step"].to_numpy()[~launched]
    return replace(attribution, **changed)


def _find_numbers(steps: pd.DataFrame, process: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Find the number of the step of a process that holds each moment; -1 outside all of them."""
    number = np.full(len(time), -1, np.int32)
    for step in steps.itertuples(index=False):
        inside = (process == step.process) & (time >= step.start_ns) & (time < step.end_ns)
        number[inside] = step.number
    return number


def _add_whole_steps(rows: pd.DataFrame, steps: pd.DataFrame, capture: Capture) -> pd.DataFrame:
    """Add how long each step takes on the host, if no range marks it."""
    if (rows["phase"].astype(str) == ranges.STEP).any() or not len(capture.ranges):
        return rows
    ranks = pd.factorize(steps["process"], sort=True)[0]
    rows_of_steps = pd.DataFrame(
        {
            "rank": ranks,
            "process": 0,
            "collector": "nsys",
            "step": steps["number"].to_numpy(),
            "phase": ranges.STEP,
            "wall_ns": (steps["end_ns"] - steps["start_ns"]).to_numpy(),
            "issue_ns": None,
            "round": -1,
        }
    ).assign(run_id=pd.Categorical(["run"] * len(steps), ["run"]))
    return pd.concat([rows.astype({"phase": object}), rows_of_steps[[*rows.columns]]], ignore_index=True)


def _rename_parts(frame: pd.DataFrame) -> pd.DataFrame:
    """Give the ranges of layers and of attention's parts the names that questions read."""
    if "module" not in frame:
        return frame
    module = frame["module"].astype("category")
    renamed = ["/".join(_rename_part(name) for name in str(path).split("/")) for path in module.cat.categories]
    codes, names = pd.factorize(np.array(renamed, dtype=object)) if renamed else (np.empty(0, int), [])
    code = module.cat.codes.to_numpy()
    return frame.assign(module=pd.Categorical.from_codes(codes[code] if renamed else code, list(names)))


def _rename_part(name: str) -> str:
    if layer := _LAYER.fullmatch(name.strip()):
        return ranges.name_block(int(layer[1]))
    return next((part for part, pattern in PARTS.items() if pattern.fullmatch(name.strip())), name)


# ------------------------------------------------------------------------------------------------------- rows of runs


def _make_run(facts: CaptureFacts, mode: str, gpus: int = 1) -> dict[str, Any]:
    known = facts.known
    shape = {name: known.get(name) for name in Shape._fields}
    run = {name: find_default(name) for name in Run.model_fields}
    run |= {name: known.get(name) for name in ("size", "context_length", "batch_size", *_CASE[3:])} | shape
    run["mode"] = mode
    run["gpus"] = gpus
    run["vocab_size"] = known.get("vocab_size")
    if all(shape.values()) and known.get("vocab_size"):
        sizes = Shape(*(int(known[name]) for name in Shape._fields))
        run["num_parameters"] = count_parameters(sizes, int(known["vocab_size"]))
    return run


def _make_run_row(run: Mapping[str, Any]) -> pd.DataFrame:
    row = {column.name: run.get(column.name) for column in table_schema.TABLES["runs"]}
    row |= {name: value for name, value in run.items() if name not in row}
    return pd.DataFrame({name: [value] for name, value in row.items()}, dtype=object)


def _make_empty(
    facts: CaptureFacts, capture: Capture | None, stated: str, status: str, message: str, phase: str | None = None
) -> list[_Part]:
    """Make a run without numbers, in the mode that is stated; none without a mode."""
    if not stated:
        return []
    run = _make_run(facts, stated) | {"status": status, "status_phase": phase, "status_message": message}
    run["started_at"] = capture.recorded_at if capture else ""
    return [_Part(facts=facts, mode=stated, run=run, tables={})]


def _make_unread(facts: CaptureFacts, problem: str) -> list[_Part]:
    stated = str(facts.known.get("mode", ""))
    return _make_empty(facts, None, stated, "failed", problem, READING_CAPTURE)


def _make_absent(facts: CaptureFacts) -> list[_Part]:
    """Make the run of a row without a file: in every mode, if it gives none."""
    status = str(facts.known.get("status", "oom"))
    modes = [str(facts.known["mode"])] if "mode" in facts.known else [*MODE_PHASES]
    message = "the file of facts says so"
    return [part for mode in modes for part in _make_empty(facts, None, mode, status, message)]


def _name_run(part: _Part, has_gpu: bool) -> str:
    run = part.run
    named = (run["size"], f"ctx{run['context_length']}", run["precision"], run["attention"], run["mode"])
    words = [*map(str, named)]
    words += [f"batch{run['batch_size']}"] if run["batch_size"] else []
    words += [f"gpus{run['gpus']}"] if run["gpus"] > 1 else []
    words += [str(run["gpu_name"]).replace(" ", "_")] * has_gpu
    return "-".join(words)


def _fill_from_others(parts: Sequence[_Part], notes: dict[str, list[str]]) -> None:
    """Fill what a capture does not show of its precision, attention and GPU with the one value that all others have;
    else it is unknown."""
    for name in ("precision", "attention", "gpu_name", "batch_size"):
        values = {part.run[name] for part in parts if part.run[name] is not None}
        fallback = None if name == "batch_size" else UNKNOWN
        for part in parts:
            if part.run[name] is None:
                part.run[name] = next(iter(values)) if len(values) == 1 else fallback
                if len(values) == 1 and part.tables:
                    notes[part.facts.name].append(f"{name} is not known: taken to be as in the other captures")
                    part.facts.learn({name: part.run[name]}, "other captures")


def _name_workloads(parts: Sequence[_Part]) -> None:
    """Call the runs of a size the reference Transformer, whose formulas count FLOPs, if the shape of all is known."""
    needed = (*Shape._fields, "batch_size", "vocab_size")
    unknown = {part.run["size"] for part in parts if not all(part.run[name] for name in needed)}
    for part in parts:
        part.run["workload"] = "captures" if part.run["size"] in unknown else find_default("workload")


def _refuse_doubled(parts: list[_Part], notes: dict[str, list[str]], emit: Callable[[str], None]) -> list[_Part]:
    """Keep one run of each case and mode: one that is called so, or else the first."""
    kept: dict[tuple[Any, ...], _Part] = {}
    for part in sorted(parts, key=lambda part: (not part.tables, part.facts.known.get("mode") != part.mode)):
        key = (*(part.run[name] for name in _CASE), part.run["gpus"], part.mode)
        other = kept.setdefault(key, part)
        if other is not part and part.tables and part.facts.known.get("mode") in (None, part.mode):
            same = f"the same case and mode ({part.mode}) as {other.facts.name}"
            line = f"{same}: left out; give another fact, or remove one"
            notes[part.facts.name].append(line)
            emit(f"{part.facts.name}: {line}")
    chosen = {id(part) for part in kept.values()}
    return [part for part in parts if id(part) in chosen]


# ------------------------------------------------------------------------------------------------------ Python's times


def _make_timer_steps(part: _Part, times: Sequence[PythonTime]) -> pd.DataFrame:
    """Make the rows of steps that Python timed of a run."""
    rows: list[dict[str, Any]] = []
    counts: dict[str, int] = {}
    mine = [time for time in times if _is_of(time, part)]
    has_forward = any(time.phase == ranges.FORWARD for time in mine)
    for time in mine:
        # A step of mode forward is its forward pass, unless the forward passes have times themselves.
        is_pass = part.mode == "forward" and time.phase == ranges.STEP and not has_forward
        for phase in (time.phase, *([ranges.FORWARD] * is_pass)):
            step = counts[phase] = counts.get(phase, -1) + 1
            rows.append({"phase": phase, "step": step, "wall_ns": time.wall_ns})
    common = {"rank": 0, "process": 0, "collector": "timer", "issue_ns": None, "round": -1}
    frame = pd.DataFrame(rows, columns=["phase", "step", "wall_ns"]).assign(**common)
    run_id = part.run["run_id"]
    return frame.assign(run_id=pd.Categorical([run_id] * len(frame), [run_id]))


def _is_of(time: PythonTime, part: _Part) -> bool:
    """Whether a time is of a part."""
    if isinstance(time.case, str):
        names = {part.facts.name, Path(part.facts.name).name} | ({part.facts.path.name} if part.facts.path else set())
        names |= {Path(name).stem for name in names}
        return time.case in names or Path(time.case).stem in names
    size, context, mode = time.case
    is_same = (size, context) == (part.run["size"], part.run["context_length"])
    return is_same and (mode == part.mode or (not mode and time.phase in MODE_PHASES[part.mode]))


def _fill_context(times: list[PythonTime], parts: Sequence[_Part], problems: dict[str, str]) -> list[PythonTime]:
    """Fill the context length of times that name none, if all captures have the same; the others are left out."""
    contexts = {part.run["context_length"] for part in parts}
    filled = []
    for time in times:
        if isinstance(time.case, tuple) and time.case[1] == ANY_CONTEXT:
            if len(contexts) > 1:
                problems[time.source] = "its times name no context length, and the captures have several: add a column"
                continue
            (context,) = contexts
            problems[time.source] = f"names no context length: taken to be {context}, as of all captures"
            time = time._replace(case=(time.case[0], context, time.case[2]))
        filled.append(time)
    return filled


def _find_unused(times: Sequence[PythonTime], parts: Sequence[_Part]) -> dict[str, str]:
    """Find the times that are of no capture, and say so by file."""
    unused: dict[str, list[str]] = {}
    for time in times:
        if not any(_is_of(time, part) for part in parts):
            words = [time.case] if isinstance(time.case, str) else [f"{word}" for word in time.case if word]
            case = make_printable(", ".join(dict.fromkeys([*words, time.phase])))
            unused.setdefault(time.source, []).append(case)
    return {
        source: f"{format_count(len(cases), 'time')} of no capture here: {list_some([*dict.fromkeys(cases)], most=3)}"
        for source, cases in unused.items()
    }


def _describe_source(part: _Part) -> dict[str, Any]:
    known, where = part.facts.known, part.facts.where
    names = [*_CASE, "d_model", "d_ff", "num_layers", "num_heads", "warmup"]
    sources = [f"{name}: {where[name]}" for name in names if name in known]
    return {
        "run_id": part.run["run_id"],
        "capture": part.facts.name,
        "size": part.run["size"],
        "context_length": part.run["context_length"],
        "batch_size": part.run["batch_size"],
        "mode": part.mode,
        "precision": part.run["precision"],
        "attention": part.run["attention"],
        "gpu_name": part.run["gpu_name"],
        "gpus": part.run["gpus"],
        "status": part.run.get("status", ""),
        "steps": part.run.get("profiled_steps") or 0,
        "steps_from": part.how,
        "known_from": "; ".join(sources),
    }


def _store_and_load(tables: Mapping[str, pd.DataFrame], name: str) -> store.Recording:
    """Store tables as a recording and load it again: they are checked, and rounded as a sweep's are."""
    manifest = {"name": name, "runs": tables["runs"][["run_id", "status"]].to_dict("records"), "study": ""}
    with tempfile.TemporaryDirectory(prefix="profiler-job-") as folder:
        store.write(Path(folder) / "recording", tables, manifest)
        return store.load(Path(folder) / "recording")
