"""The runs of a sweep as a table of text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from profiler_job.jobs.contract.axes import Run
from profiler_job.jobs.contract.layout import Protocol
from profiler_job.jobs.memory import (
    CUDA_CONTEXT_BYTES,
    Failure,
    Owner,
    Simulation,
    compute_allocator_limit,
    infer_shape,
    is_predictable,
    is_reference,
    predict_failure,
    predict_memory_bytes,
    predict_owners,
)
from profiler_job.jobs.sweep.prediction import predict_seconds

GAP = "  "
OWNERS = {
    "weights": {Owner.PARAMETERS},
    "gradients": {Owner.GRADIENTS},
    "optimizer": {Owner.OPTIMIZER_STATE},
    "activations": {Owner.ACTIVATIONS, Owner.CASTS},
}
"""What the columns of memory by owner hold; all else is the rest."""
REST = "rest"
UNKNOWN = "n/a"  # of a workload that says and predicts nothing


def format_gib(num_bytes: int) -> str:
    """Format GiB to a tenth, and smaller values to two digits."""
    gib = num_bytes / 2**30
    return f"{gib:.1f}" if gib >= 0.1 else f"{gib:.2g}"


def format_parameters(number: int) -> str:
    """Format a number of parameters in millions, small ones with two digits."""
    millions = number / 1e6
    return f"{millions:,.0f} M" if millions >= 10 else f"{millions:.2g} M"


class PlanTable:
    """Parameters and predicted time of each run, its memory (`with_memory`), what holds it at the peak (`with_owners`),
    and where it will not fit a GPU sold with `gpu_memory` GB or the run's own limit (`with_limits`). Predicting memory
    is what takes time. `simulated` has the runs whose memory was simulated elsewhere."""

    def __init__(
        self,
        protocol: Protocol,
        with_memory: bool,
        with_limits: bool,
        gpu_memory: float = 0,
        simulated: Mapping[Run, Simulation] | None = None,
        with_owners: bool = False,
    ):
        self.protocol, self.with_memory, self.gpu_memory = protocol, with_memory, gpu_memory
        self.with_owners = with_owners
        self.simulated = simulated or {}
        self.with_limits = with_limits and with_memory
        self.num_too_large, self.total_s = 0, 0.0
        self.headings = ["run", "parameters", "batch"]
        owners = [*OWNERS, REST] if with_owners else []
        self.headings += ["GiB"] * with_memory + owners + ["time (s)"] + ["will not fit"] * self.with_limits

    def row(self, run: Run) -> list[str]:
        seconds = predict_seconds(run, self.protocol)
        self.total_s += seconds or 0
        simulated = self.simulated.get(run)
        num_parameters = run.num_parameters or (simulated.num_parameters if simulated else 0)
        row = [run.run_id, format_parameters(num_parameters) if num_parameters else UNKNOWN, str(run.batch_size)]
        if self.with_memory:
            memory = self.predict_bytes(run)
            row.append(UNKNOWN if memory is None else format_gib(memory))
        if self.with_owners:
            owners = self.predict_owners(run)
            row += [format_gib(owners[owner]) if owners else UNKNOWN for owner in (*OWNERS, REST)]
        row.append(UNKNOWN if seconds is None else f"{seconds:.0f}")
        if self.with_limits:
            failure = self.failure(run)
            self.num_too_large += failure is not None
            row.append(f"{('first', 'second')[failure.step]} step, {failure.phase}" if failure else "")
        return row

    def describe(self, run: Run) -> dict[str, Any]:
        """Return what is predicted for a run: bytes, seconds, and where it will not fit; None for what is not known."""
        simulated = self.simulated.get(run)
        facts: dict[str, Any] = {"run_id": run.run_id, "batch_size": run.batch_size}
        facts["num_parameters"] = run.num_parameters or (simulated.num_parameters if simulated else None) or None
        if self.with_memory:
            facts["memory_bytes"] = self.predict_bytes(run)
        if self.with_owners:
            facts["memory_by_owner"] = self.predict_owners(run) or None
        facts["time_s"] = predict_seconds(run, self.protocol)
        if self.with_limits:
            failure = self.failure(run)
            facts["will_not_fit"] = {"step": failure.step + 1, "phase": failure.phase} if failure else None
        return facts

    def predict_bytes(self, run: Run) -> int | None:
        """Predict the memory of a run; of a model of one's own without the CUDA context. None: not known."""
        if (simulated := self.simulated.get(run)) is None:
            return predict_memory_bytes(run)
        peak = simulated.peak_bytes
        return peak + CUDA_CONTEXT_BYTES if peak is not None and is_reference(run) else peak

    def predict_owners(self, run: Run) -> dict[str, int]:
        """Predict what the memory of a run belongs to at its peak, in bytes, which sum to `predict_bytes`: the columns
        of OWNERS, and the rest. Empty if it is not known."""
        total = self.predict_bytes(run)
        by_owner: dict[str, int] = {}
        if (simulated := self.simulated.get(run)) is not None:
            by_owner = simulated.peak_owners
        elif is_predictable(run):
            by_owner = {str(owner): size for owner, size in predict_owners(infer_shape(run)).owners.items()}
        if total is None or not by_owner:
            return {}
        known = {name: sum(by_owner.get(owner, 0) for owner in owners) for name, owners in OWNERS.items()}
        return known | {REST: total - sum(known.values())}

    def failure(self, run: Run) -> Failure | None:
        limit_bytes = compute_allocator_limit(run, self.gpu_memory)
        simulated = self.simulated.get(run)
        return simulated.failure(limit_bytes) if simulated else predict_failure(run, limit_bytes)

    def lines(self, runs: Iterable[Run], width: int | None = None) -> Iterator[str]:
        """The headings, then a line a run; two, the second one indented, if a line would be longer than `width`."""
        rows = [self.headings, *map(self.row, runs)]
        widths = [max(map(len, column)) for column in zip(*rows)]
        is_wide = width is not None and sum(widths) + len(GAP) * (len(widths) - 1) > width
        for row in rows:
            if is_wide:
                yield row[0]
                yield GAP + self.line(["", *row[1:]], [0, *widths[1:]]).removeprefix(GAP)
            else:
                yield self.line(row, widths)

    def line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        """Format a line with words to the left and numbers to the right."""
        cells = [
            cell.ljust(width) if heading in ("run", "will not fit") else cell.rjust(width)
            for cell, width, heading in zip(row, widths, self.headings)
        ]
        return GAP.join(cells).rstrip()
