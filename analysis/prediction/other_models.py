"""What a change would give to a run of a sweep whose model is not the reference Transformer, such as one of Hugging
Face: neither the shapes of its matmuls nor its modules are known, so its kinds of kernels get as much faster or slower
as in a script (`scripts`). Unlike a script, a sweep waits for the GPU at the end of each phase, and times without nsys
what the host needs for it."""

import math

import numpy as np

from profiler_job.analysis.metrics.step_clocks import GAP_NS, HOST_LIMITED
from profiler_job.analysis.prediction import scripts
from profiler_job.analysis.prediction.abstentions import AbstentionCode, AbstentionError
from profiler_job.analysis.prediction.baseline import Baseline, Tables, read_run
from profiler_job.analysis.prediction.predict import between_ns, host_key, own_host_rates
from profiler_job.analysis.prediction.rates import Rates
from profiler_job.analysis.prediction.script_changes import Behind, Step, measure_savable
from profiler_job.analysis.prediction.script_rates import ScriptRates
from profiler_job.analysis.prediction.sweep_changes import PASSES
from profiler_job.jobs.contract.changes import SYNCHRONISATIONS


def step_of(baseline: Baseline, recording: Tables, rates: ScriptRates, known: Rates) -> Step:
    """The step of a run of `recording`. known: what hosts of recorded runs needed, where the run's own waited for the
    GPU. Raises AbstentionError."""
    run = baseline.run
    if str(run["gpu_name"]) != rates.gpu:
        raise AbstentionError(
            AbstentionCode.OTHER_GPU, f"the recorded pairs are of {rates.gpu}, and this run is of {run['gpu_name']}"
        )
    if run.get("gpus", 1) > 1:
        raise AbstentionError(
            AbstentionCode.SEVERAL_GPUS, "its GPUs wait for each other, and the recorded pairs are of one GPU"
        )
    mine = read_run(recording, str(run["run_id"]))
    parts, behind = scripts.parts_of(mine), _measure_savable(mine)
    sums = parts.groupby("phase").sum()
    own, host_ns, gaps = own_host_rates(baseline), {scripts.OUTSIDE: between_ns(baseline)}, []
    for phase in baseline.phases:
        clock, launches = baseline.clocks[phase], float(sums["launches"].get(phase, 0.0))
        if phase in PASSES:
            host_ns[phase] = launches * own.get(phase, known.host[host_key(run, phase)])
        else:
            host_ns[phase] = clock.wall_ns if math.isnan(clock.issue_ns) else clock.issue_ns
        if launches and clock.issue_ns <= HOST_LIMITED * clock.wall_ns:
            gaps.append((clock.wall_ns - sums["time_ns"][phase], launches))
    gap_ns = sum(gap for gap, _ in gaps) / sum(number for _, number in gaps) if gaps else GAP_NS
    return Step(
        run=run,
        step_ns=baseline.step_ns,
        parts=parts,
        gap_ns=float(np.clip(gap_ns, 0.0, GAP_NS)),
        host_ns=host_ns,
        behind=behind,
        is_in_phases=True,
        passes_ns=baseline.passes_ns,
        casts_weights=scripts.casts_weights(run, behind, baseline.step_ns),
    )


def _measure_savable(recording: Tables) -> dict[str, Behind]:
    """What the step spends on what changes do away with; not its synchronisations, which come from the timer."""
    return {name: behind for name, behind in measure_savable(recording).items() if name != SYNCHRONISATIONS}
