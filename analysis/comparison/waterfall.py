"""Explain why a profiled step takes another time: parts in integer nanoseconds that sum exactly to the difference.

The total is the range of a step under nsys, on each device of its rank: kernel time + copies and fills - what runs at
once + idle time by cause. If both sides have the same number of steps, the parts are sums over these steps; otherwise
both are scaled to the least common multiple of the two numbers (`Waterfall.num`), so that all stays exact. Per token,
times are scaled to a common number of tokens instead; kernels are still counted by step, since a step of more tokens
launches as many.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from profiler_job.analysis.capture.fused_kernels import shorten_fused
from profiler_job.analysis.comparison.fused_modules import divide_among_modules
from profiler_job.analysis.comparison.noise import Kind as Clock
from profiler_job.analysis.comparison.noise import Noise, NumOf
from profiler_job.analysis.comparison.totals import COPY, IDLE, KERNEL, Totals, match_modules
from profiler_job.analysis.metrics.kernel_time import OUTSIDE
from profiler_job.jobs.contract.quantities import format_share
from profiler_job.jobs.contract.words import format_count, inflect

GROUP = ["phase", "module", "family"]
PARTS = ("vanished_ns", "appeared_ns", "calls_ns", "per_call_ns")
"""Parts of a group's difference: kernels of names that only A has; that only B has; that both have, but not as often
(their whole difference, since the additional calls are not known); that both have as often, with another duration."""

FUSED, GEMM = "triton", "gemm"
"""Families: kernels that a compiler made of others, and matmuls, which it leaves as they are."""
TOKENS = 1000
"""Number of tokens that times refer to if they are compared per token."""
LEAST_SHARE = 0.005
"""Share of the largest part below which a part is not shown first, even if it exceeds noise."""
MANY = 3
"""Number of noise bands that a part must exceed to count if both sides launch as many operations. There are dozens of
such parts, and between two recordings of one program some exceed a band that one part in twenty may exceed; few exceed
this many (the guide has the rates). Launching other operations is never chance, whatever they take."""

EXPLAINS = 0.1
"""Share of the step's difference from which on a part in the same direction explains some of it, even within noise."""

AS_MANY, REGROUPED = 1.1, 2
"""Operations up to so many times as many are about as many; launches from so many times as many on are far more."""

Kind = Literal["replaced", "per_call", "copies", "overlap", "idle", "rest"]
SORTS: dict[Kind, str] = {
    "replaced": "kernels",
    "per_call": "kernels",
    "copies": "copies and fills",
    "overlap": "overlap",
    "idle": "idle",
}
"""What the parts of a kind are summed as."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A line of the waterfall: what changed, and by how much. ns, and band_ns, which it must exceed to count: for
    `Waterfall.num` units. is_regrouped: of idle time, whether about as many operations come in far fewer or far more
    launches, as in a CUDA graph: that is never chance, whatever the wait for them."""

    kind: Kind
    text: str
    ns: int
    band_ns: float = 0.0
    phase: str = ""
    module: str = ""
    families: tuple[str, ...] = ()
    is_regrouped: bool = False

    @property
    def is_real(self) -> bool:
        """Whether it exceeds the noise."""
        return abs(self.ns) > self.band_ns

    def explains(self, off_ns: float) -> bool:
        """Whether it goes the way of a difference, and is beyond noise or a good part of it (EXPLAINS)."""
        return self.ns * off_ns > 0 and (self.is_real or abs(self.ns) >= EXPLAINS * abs(off_ns))

    @property
    def sort(self) -> str:
        """What it is summed as; "" of a rest."""
        return SORTS.get(self.kind, "")


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """num: units that the times refer to: steps, or per_token TOKENS tokens. num_steps: steps that calls refer to.
    first_ns, second_ns: the ranges of so many units. groups: GROUP, first_calls, second_calls, first_ns, second_ns,
    PARTS, whose sums are second_ns - first_ns. names: kernels that only one side has, in any phase and module:
    kernel_name, family, first_calls, second_calls, first_ns, second_ns; the longest first. causes: what counts first
    (`_order`), whose ns sum to second_ns - first_ns of the waterfall. by_phase, by_module: the kernels by phase, and by
    phase and module: first_calls, second_calls, first_ns, second_ns, band_ns; the most changed first; by_module
    divides fused kernels, and has fused_into (see `fused_modules.divide_among_modules`), too."""

    num: int
    num_steps: int
    per_token: bool
    first_ns: int
    second_ns: int
    groups: pd.DataFrame
    names: pd.DataFrame
    by_phase: pd.DataFrame
    by_module: pd.DataFrame
    causes: list[Cause]

    @property
    def difference_ns(self) -> int:
        return self.second_ns - self.first_ns

    @property
    def sums(self) -> dict[str, int]:
        """ns of the causes of each sort that there is."""
        sums = dict.fromkeys(SORTS.values(), 0)
        for cause in self.causes:
            sums[cause.sort] += cause.ns
        return {sort: ns for sort, ns in sums.items() if ns}

    @property
    def first_causes(self) -> list[Cause]:
        """The first cause, and the largest if it is another one, within noise. None if nothing differs."""
        if not self.causes:
            return []
        first, largest = self.causes[0], max(self.causes, key=lambda cause: abs(cause.ns))
        return [first] if abs(first.ns) == abs(largest.ns) else [first, largest]

    def shorten(self, num_causes: int) -> list[Cause]:
        """Shorten the causes to the first one and the largest others, so many together, in their order, then one called
        rest for all others of each sort; all of them for 0."""
        if not num_causes or len(self.causes) < num_causes + 2:
            return self.causes
        others = sorted(self.causes[1:], key=lambda cause: -abs(cause.ns))[: num_causes - 1]
        wanted = {id(cause) for cause in (self.causes[0], *others)}
        shown = [cause for cause in self.causes if id(cause) in wanted]
        rest = [cause for cause in self.causes if id(cause) not in wanted]
        for sort in dict.fromkeys(SORTS.values()):
            of_sort = [cause.ns for cause in rest if cause.sort == sort]
            if of_sort:
                text = f"the rest of {sort}, {format_count(len(of_sort), 'part')}"
                shown.append(Cause(kind="rest", text=text, ns=sum(of_sort)))
        return shown


@dataclass(frozen=True, kw_only=True)
class _Scales:
    """Integer factors that make both sides the same amount of work. calls: for the calls of A and of B, to num_steps
    steps; ns: for their times, to `num` units."""

    num: int
    num_steps: int
    calls: tuple[int, int]
    ns: tuple[int, int]

    @property
    def steps_per_unit(self) -> float:
        """The larger of both sides: 1 if the unit is a step."""
        return max(self.num_steps // calls * ns / self.num for ns, calls in zip(self.ns, self.calls))


def _make_scales(first: Totals, second: Totals, tokens: tuple[int, int] | None) -> _Scales:
    num_steps = math.lcm(first.num, second.num)
    calls = num_steps // first.num, num_steps // second.num
    if tokens is None:
        return _Scales(num=num_steps, num_steps=num_steps, calls=calls, ns=calls)
    of_sides = first.num * tokens[0], second.num * tokens[1]
    num_tokens = math.lcm(*of_sides, TOKENS)
    ns = num_tokens // of_sides[0], num_tokens // of_sides[1]
    return _Scales(num=num_tokens // TOKENS, num_steps=num_steps, calls=calls, ns=ns)


def explain(
    first: Totals,
    second: Totals,
    noise: Noise,
    num_runs: NumOf = (1, 1),
    tokens: tuple[int, int] | None = None,
    num_layers: int = 0,
    step_off_ns: float = 0.0,
) -> Waterfall:
    """Make the waterfall from A to B, whose times cover so many profiled runs. tokens: how many a step of A and of B
    has, if tokens are compared. num_layers: of the model of both, 0 if not known. step_off_ns: by how much the step of
    B differs beyond noise, which the parts should explain; 0 if it does not."""
    scales = _make_scales(first, second, tokens)
    joined = _join_sides(*match_modules(first.kernels, second.kernels), KERNEL, scales)
    kernels = _add_parts(_name_fused(joined))
    bands = _PartBands(noise, num_runs, scales)
    num = scales.num_steps
    causes = [*_explain_replaced(kernels, num, bands, num_layers), *_explain_per_call(kernels, num, bands)]
    copies = _join_sides(first.copies, second.copies, COPY, scales)
    causes += _explain_copies(copies, num, bands)
    causes += _explain_idle(first, second, scales, bands)
    causes = [cause for cause in causes if cause.ns]
    causes = _order(causes, step_off_ns * scales.num)
    wall = first.wall_ns * scales.ns[0], second.wall_ns * scales.ns[1]
    assert sum(cause.ns for cause in causes) == wall[1] - wall[0], "the parts are all that differs"
    sums = ["first_calls", "second_calls", "first_ns", "second_ns", *PARTS]
    groups = kernels.groupby(GROUP, sort=False)[sums].sum().reset_index()
    return Waterfall(
        num=scales.num,
        num_steps=num,
        per_token=tokens is not None,
        first_ns=wall[0],
        second_ns=wall[1],
        groups=groups,
        names=_find_one_sided(kernels),
        by_phase=_sum_by(groups, ["phase"], bands),
        by_module=_sum_by(divide_among_modules(joined), ["phase", "module", "fused_into"], bands),
        causes=causes,
    )


def _order(causes: list[Cause], step_off_ns: float) -> list[Cause]:
    """Sort causes: first what explains the difference of the step, if there is one, then what exceeds noise or is
    regrouped, then what is within noise; in each the largest first. A cause that is tiny compared with the largest, or
    with the step, is not first."""
    largest = max((abs(cause.ns) for cause in causes), default=0)
    least, least_of_step = LEAST_SHARE * largest, LEAST_SHARE * max(largest, abs(step_off_ns))

    def place(cause: Cause) -> tuple[bool, bool, int]:
        is_why = cause.explains(step_off_ns) and abs(cause.ns) >= least_of_step
        return not is_why, not ((cause.is_real or cause.is_regrouped) and abs(cause.ns) >= least), -abs(cause.ns)

    return sorted(causes, key=place)


def _join_sides(first: pd.DataFrame, second: pd.DataFrame, by: list[str], scales: _Scales) -> pd.DataFrame:
    """Join the sides to columns by, first_calls, first_ns, second_calls, second_ns (0 if a side has none), for the same
    number of steps."""
    sides = []
    for side, rows, calls, ns in zip(("first", "second"), (first, second), scales.calls, scales.ns):
        scaled = rows.assign(calls=rows["calls"] * calls, time_ns=rows["time_ns"] * ns)
        sides.append(scaled.set_index(by).rename(columns={"calls": f"{side}_calls", "time_ns": f"{side}_ns"}))
    both = sides[0].join(sides[1], how="outer")
    return both.fillna(0).astype("int64").reset_index()


def _name_fused(kernels: pd.DataFrame) -> pd.DataFrame:
    """Name fused kernels without percents, which differ between sizes; those that are called the same then are one."""
    short = kernels["module"].map(shorten_fused)
    if short.equals(kernels["module"]):
        return kernels
    return kernels.assign(module=short).groupby(KERNEL, sort=False).sum().reset_index()


def _add_parts(kernels: pd.DataFrame) -> pd.DataFrame:
    off = kernels["second_ns"] - kernels["first_ns"]
    vanished, appeared = kernels["second_calls"] == 0, kernels["first_calls"] == 0
    alike = kernels["first_calls"] == kernels["second_calls"]
    return kernels.assign(
        vanished_ns=off.where(vanished, 0),
        appeared_ns=off.where(appeared, 0),
        calls_ns=off.where(~vanished & ~appeared & ~alike, 0),
        per_call_ns=off.where(alike, 0),
    )


def _find_one_sided(kernels: pd.DataFrame) -> pd.DataFrame:
    """Kernels by name that one side does not launch at all."""
    sums = ["first_calls", "second_calls", "first_ns", "second_ns"]
    names = kernels.groupby(["kernel_name", "family"], sort=True)[sums].sum().reset_index()
    names = names[(names["first_calls"] == 0) | (names["second_calls"] == 0)]
    time = names[["first_ns", "second_ns"]].max(axis=1)
    return names.loc[time.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


def _sum_by(groups: pd.DataFrame, by: list[str], bands: "_PartBands") -> pd.DataFrame:
    sums = groups.groupby(by, sort=False)[["first_calls", "second_calls", "first_ns", "second_ns"]].sum().reset_index()
    times, calls = (sums[[f"first_{what}", f"second_{what}"]].max(axis=1) for what in ("ns", "calls"))
    are_others = sums["first_calls"] != sums["second_calls"]
    sums["band_ns"] = [bands.compute_operations_band(*row) for row in zip(times, calls, are_others)]
    changed = (sums["second_ns"] - sums["first_ns"]).abs()
    return sums.loc[changed.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


# --------------------------------------------------------------------------------------------------------------- causes


class _PartBands:
    """Noise bands of parts: operations have the band of kernel time, idle time the band of the waiting time in a step.
    They are MANY times as wide unless the sides launch other operations (`are_others`). Times and calls are as `scales`
    makes them."""

    def __init__(self, noise: Noise, num_runs: NumOf, scales: _Scales):
        self._noise, self._num_runs, self._scales = noise, num_runs, scales

    def compute_operations_band(self, time_ns: float, calls: float, are_others: bool = False) -> float:
        parts = math.sqrt(calls / self._scales.num_steps) * self._scales.steps_per_unit
        return self._compute_width("kernel", time_ns / self._scales.num, parts, are_others)

    def compute_idle_band(self, time_ns: float, are_others: bool = False) -> float:
        return self._compute_width("wall", 0.0, time_ns / self._scales.num, are_others)

    def _compute_width(self, kind: Clock, time_ns: float, parts: float, are_others: bool) -> float:
        width = self._scales.num * self._noise.width(kind, time_ns, parts, self._num_runs)
        return width if are_others else MANY * width


def _explain_replaced(kernels: pd.DataFrame, num: int, bands: _PartBands, num_layers: int) -> Iterator[Cause]:
    """Explain kernels that are launched otherwise, for each phase and module. If kernels go in one module and come in a
    neighbour, they belong to the module around both: one fused attention replaces three modules. If kernels of Triton
    come or go, matmuls next to them are a separate part: a compiler does not fuse them."""
    changed = kernels[kernels["first_calls"] != kernels["second_calls"]]
    changed = changed.assign(calls_off=changed["second_calls"] - changed["first_calls"])
    changed = changed.assign(scope=_find_scopes(changed))
    compiled = (changed["family"] == FUSED).groupby([changed["phase"], changed["scope"]]).transform("any")
    changed = changed.assign(is_beside=compiled & (changed["family"] == GEMM))
    groups: dict[
        tuple[Any, ...], list[Any]
    ] = {}  # there are many, of a few rows each: frames would take most of the time
    for row in changed.itertuples(index=False):
        groups.setdefault((row.phase, row.scope, row.is_beside), []).append(row)
    for (phase, scope, _), rows in groups.items():
        gone, come = ([row for row in rows if row.calls_off * sign > 0] for sign in (-1, 1))
        num_gone, num_come = (abs(sum(int(row.calls_off) for row in some)) for some in (gone, come))
        before, after = _name_families(gone), _name_families(come)
        layers = _count_layers(scope, (num_gone, num_come), num, num_layers)
        unit = " a layer" if layers > 1 else ""
        went, came = _format_per_step(num_gone, num * layers), _format_per_step(num_come, num * layers)
        if not num_come:
            text = f"{_format_kernels(went, before, unit)} vanished"
        elif not num_gone:
            text = f"{_format_kernels(came, after, unit)} appeared"
        elif num_gone == num_come and before == after:
            text = f"{_format_kernels(went, before, unit)} became others"
        elif FUSED in after and FUSED not in before:
            text = f"{_format_kernels(went, before, unit)} became {came} fused ({', '.join(after)})"
        else:
            text = f"{_format_kernels(went, before, unit)} became {came} ({', '.join(after)})"
        families = tuple(dict.fromkeys([*after, *before]))
        text = f"{_format_place(phase, scope)}: {text}"
        before_ns, after_ns = (sum(int(getattr(row, name)) for row in rows) for name in ("first_ns", "second_ns"))
        calls = max(sum(int(getattr(row, name)) for row in rows) for name in ("first_calls", "second_calls"))
        band, off = (
            bands.compute_operations_band(max(before_ns, after_ns), calls, are_others=True),
            after_ns - before_ns,
        )
        yield Cause(kind="replaced", text=text, ns=off, band_ns=band, phase=phase, module=scope, families=families)


def _find_scopes(changed: pd.DataFrame) -> list[str]:
    """Find the module of each row, or the nearest one around it in whose modules kernels both go and come."""
    goes: dict[tuple[str, str], set[bool]] = {}
    at_top: dict[str, set[bool]] = {}
    for phase, module, off in zip(changed["phase"], changed["module"], changed["calls_off"]):
        for path in _list_ancestors(module):
            goes.setdefault((phase, path), set()).add(off < 0)
        if not module:
            at_top.setdefault(phase, set()).add(off < 0)
    scopes = []
    for phase, module, off in zip(changed["phase"], changed["module"], changed["calls_off"]):
        both = (path for path in _list_ancestors(module) if len(goes[phase, path]) == 2)
        top = "" if (off > 0) in at_top.get(phase, set()) else module
        scopes.append(next(both, top))
    return scopes


def _list_ancestors(module: str) -> list[str]:
    """List a module and the modules around it, from the inside outwards; none for the top of a phase."""
    names = module.split("/") if module else []
    return ["/".join(names[:depth]) for depth in range(len(names), 0, -1)]


def _explain_per_call(kernels: pd.DataFrame, num: int, bands: _PartBands) -> Iterator[Cause]:
    """Kernels that are launched as often, by group: how much longer or shorter each is."""
    alike = kernels[kernels["first_calls"] == kernels["second_calls"]]
    sums = alike.groupby(GROUP, sort=False)[["first_calls", "first_ns", "second_ns"]].sum()
    for (phase, module, family), calls, before, after in sums.itertuples():
        share = abs(after / before - 1) if before else 0.0
        how = f"{format_share(share)} {'slower' if after > before else 'faster'}"
        text = f"{_format_place(phase, module)}: {_format_kernels(_format_per_step(calls, num), [family])}, {how}"
        band, off = bands.compute_operations_band(max(before, after), calls), int(after - before)
        yield Cause(kind="per_call", text=text, ns=off, band_ns=band, phase=phase, module=module, families=(family,))


def _explain_copies(copies: pd.DataFrame, num: int, bands: _PartBands) -> Iterator[Cause]:
    for phase, operation, first_calls, before, second_calls, after in copies.itertuples(index=False):
        was, now = _format_per_step(first_calls, num), _format_per_step(second_calls, num)
        calls = f"{now}" if was == now else f"{was} became {now}"
        text = f"{_format_place(phase, '')}: {operation}, {calls}"
        band = bands.compute_operations_band(max(before, after), first_calls, first_calls != second_calls)
        yield Cause(kind="copies", text=text, ns=after - before, band_ns=band, phase=phase)


def _explain_idle(first: Totals, second: Totals, scales: _Scales, bands: _PartBands) -> Iterator[Cause]:
    before, after = scales.ns
    num = scales.num_steps
    overlaps = first.overlap_ns * before, second.overlap_ns * after
    band = bands.compute_operations_band(max(overlaps), num)
    text = "operations that run at the same time as others"
    yield Cause(kind="overlap", text=text, ns=overlaps[0] - overlaps[1], band_ns=band)
    factors = [
        {"operations": calls, "launches": calls, "launch": ns, "boundary": ns}
        for calls, ns in zip(scales.calls, scales.ns)
    ]
    was_waiting, is_waiting = (side.waits.mul(pd.Series(of)) for side, of in zip((first, second), factors))
    both = was_waiting.join(is_waiting.add_suffix("_second"), how="outer")
    for phase, row in both.fillna(0).astype("int64").iterrows():
        was, now = _format_per_step(row["launches"], num), _format_per_step(row["launches_second"], num)
        what = f"before {now} launches" if was == now else f"{was} launches became {now}"
        for cause, more in (("launch", f"; {what}"), ("boundary", "")):
            text = f"idle, {_format_place(str(phase), '')}: {IDLE[cause]}{more}"
            waits = int(row[cause]), int(row[f"{cause}_second"])
            band = bands.compute_idle_band(max(waits), row["launches"] != row["launches_second"])
            made = Cause(kind="idle", text=text, ns=waits[1] - waits[0], band_ns=band, phase=str(phase))
            yield dataclasses.replace(made, is_regrouped=cause == "launch" and _is_regrouped(row))
    for cause in ("own", "ends"):
        waits = first.idle[cause] * before, second.idle[cause] * after
        band = bands.compute_idle_band(max(waits))
        yield Cause(kind="idle", text=f"idle: {IDLE[cause]}", ns=waits[1] - waits[0], band_ns=band)


def _is_regrouped(row: Any) -> bool:
    """Whether a phase has about as many operations on both sides, and far fewer or far more launches."""
    operations, launches = ((row[name], row[f"{name}_second"]) for name in ("operations", "launches"))
    return bool(max(operations) <= AS_MANY * min(operations) and max(launches) >= REGROUPED * max(min(launches), 1))


def _format_place(phase: str, module: str) -> str:
    return ", ".join(part for part in (phase or "outside phases", module if module != OUTSIDE else "") if part)


def _count_layers(scope: str, calls: tuple[int, int], num: int, num_layers: int) -> int:
    """Return the number of layers by which kernels are counted: 1 if they belong to no module, or differ between
    layers."""
    of_layers = num * num_layers
    return num_layers if scope and num_layers and all(number % of_layers == 0 for number in calls) else 1


def _format_kernels(number: str, families: list[str], unit: str = "") -> str:
    """Format a number of kernels and their families. unit: " a layer" if they are counted by layer."""
    return f"{number} {inflect(float(number.replace(',', '')), 'kernel')}{unit} ({', '.join(families)})"


def _name_families(rows: list[Any]) -> list[str]:
    """Name the families of kernels that go or come, by their time, without families below a tenth of it."""
    time: Counter[str] = Counter()
    for row in rows:
        time[row.family] += abs(int(row.second_ns - row.first_ns))
    return [str(name) for name, ns in time.most_common(3) if ns >= time.total() / 10]


def _format_per_step(number: int, num: int) -> str:
    """Format how many a step has, on average."""
    return f"{number // num:,}" if number % num == 0 else f"{number / num:,.1f}"
