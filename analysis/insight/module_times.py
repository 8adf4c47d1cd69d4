"""Kernel time of a step by module, each kernel once: the table from which one reads which layer to work on."""

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from profiler_job.analysis.capture import compiled_graphs, modules
from profiler_job.analysis.capture.attribution import Attribution
from profiler_job.analysis.capture.capture_data import Capture
from profiler_job.analysis.insight.section_columns import SECTIONS
from profiler_job.analysis.metrics import kernel_time
from profiler_job.analysis.reference.columns import format_cell
from profiler_job.analysis.reference.kernel_families import FAMILIES
from profiler_job.analysis.reference.kernel_names import shorten
from profiler_job.jobs.contract import ranges as vocabulary
from profiler_job.jobs.contract.printable import make_printable

LINKED = "linked_module"
"""Column of the places of kernels: the module that a followed step gives."""
_OWN = (vocabulary.FORWARD, vocabulary.BACKWARD, vocabulary.OPTIMIZER)
"""Phases with a column of their own."""
_MUCH = 0.1
"""Share of the kernel time from which a module that has others inside is described."""
_LOSS = re.compile(r"nll_loss|log_?softmax|cross_entropy", re.IGNORECASE)
"""In the names of kernels that compute a loss, or its gradient."""
_MISSING = "the modules of what torch.compile made"
_NOT_FOLLOWED = (
    "no table of modules: a capture alone does not show them; `profiler-job profile -- python ...` notes them"
)
_NO_GRAPHS = (
    "its kernels are in the line of the whole compiled module: PyTorch did not show more, and `profile` prints why"
)


def link_followed(capture: Capture, attribution: Attribution) -> Attribution:
    """Add the column LINKED to the places of kernels, if the capture has steps in which modules were followed."""
    if not modules.is_followed(attribution.ranges).any():
        return attribution
    linked = modules.link_modules(capture, attribution).kernels["module"]
    return replace(attribution, kernels=attribution.kernels.assign(**{LINKED: linked.array}))


def summarise_modules(capture: Capture, attribution: Attribution, families: Mapping[str, str]) -> pd.DataFrame:
    """Sum the kernels of the measured steps by module; no rows if no step follows modules. families: of kernels, by
    name."""
    place, kernels = attribution.kernels, capture.kernels
    if LINKED not in place:
        return pd.DataFrame(columns=list(SECTIONS["modules"]))
    names = kernels["kernel_name"].cat
    rows = pd.DataFrame(
        {
            "run_id": pd.Categorical.from_codes(np.zeros(len(kernels), np.int8), ["capture"]),
            "step": place["step"].to_numpy(),
            "phase": place["phase"].array,
            "module": place[LINKED].array,
            "kernel_name": kernels["kernel_name"].array,
            "family": pd.Categorical([families[str(name)] for name in names.categories])[names.codes],
            "start_ns": kernels["start_ns"].to_numpy(),
            "end_ns": kernels["end_ns"].to_numpy(),
        }
    )
    return list_modules(kernel_time.kernel_totals(rows))


def list_modules(totals: pd.DataFrame) -> pd.DataFrame:
    """List the modules of one run with their kernel time in a step, without the modules inside them, the largest first,
    from `kernel_totals`: the section `modules`; no rows if no module is known. A fused kernel's time is divided among
    its modules."""
    if not (totals["module"] != "").any():
        return pd.DataFrame(columns=list(SECTIONS["modules"]))
    rows = kernel_time.sum_alone(totals)
    rows = rows.assign(name=rows["module"], phase=rows["phase"].where(rows["phase"].isin(_OWN), "other"))
    table = rows.pivot_table(index="name", columns="phase", values="time_ns", aggfunc="sum", fill_value=0.0)
    table = table.reindex(columns=[*_OWN, "other"], fill_value=0.0).rename(columns="{}_ns".format)
    table["total_ns"] = table.sum(axis=1)
    table["share"] = table["total_ns"] / table["total_ns"].sum()
    table["family"], table["kernel"] = _find_main(rows, "family"), _find_main(rows, "kernel_name")
    table = table.reset_index().sort_values(["total_ns", "name"], ascending=[False, True], ignore_index=True)
    times = [name for name in table if str(name).endswith("_ns")]
    return table.assign(**{name: table[name].round().astype("int64") for name in times})[list(SECTIONS["modules"])]


def _find_main(rows: pd.DataFrame, column: str) -> pd.Series:
    """Find the value of a column that has most of each module's kernel time, by the module's name."""
    sums = rows.groupby(["name", column], observed=True)["time_ns"].sum().reset_index()
    largest = sums.sort_values(["time_ns", column], ascending=[False, True]).drop_duplicates("name")
    return largest.set_index("name")[column]


def describe_modules(table: pd.DataFrame, drawn: pd.DataFrame | None = None) -> list[str]:
    """Describe the section `modules` in sentences, without their full stops: which module takes most, and how to read
    the table. drawn: as in `describe_largest`."""
    in_brackets = "What no module launched has a name in brackets"
    for share in table["share"][table["name"] == vocabulary.ALL_PARAMETERS]:
        in_brackets += f", as {vocabulary.ALL_PARAMETERS}: updates of many at once, {format_cell('share', share)}"
    once = "Each kernel counts once, in its innermost module; the time of a fused one is divided among its modules"
    return [*describe_largest(table, drawn), once, in_brackets]


def describe_largest(table: pd.DataFrame, drawn: pd.DataFrame | None = None) -> list[str]:
    """Describe which module takes most, of the section `modules`, and each that takes much itself, without the modules
    inside it; then the loss, if it takes more. Nothing if no module is known. drawn: of
    `step_parts.sum_drawn_modules`; the first of these takes most then, as in the figure of the step."""
    is_bracket = table["name"].str.startswith("(") | table["name"].str.contains("/(", regex=False)
    listed = table[~is_bracket]
    described = []
    for row in [] if drawn is None else drawn.head(1).to_dict("records"):
        share = format_cell("share", row["step_share"])
        described.append(f"{make_printable(row['module'])} takes most of the modules, {share} of the kernel time")
    is_drawn = bool(described)
    for at, row in enumerate(listed.to_dict("records")):
        is_around = listed["name"].str.startswith(f"{row['name']}/").any()
        if (at or is_drawn) and not (is_around and row["share"] >= _MUCH):
            continue
        name = f"{make_printable(row['name'])}{' itself, without the modules inside it,' * bool(is_around)}"
        share, kernel = format_cell("share", row["share"]), make_printable(shorten(row["kernel"]))
        of_modules = " of the modules" * bool(row["share"] < table["share"].max())
        most = share if at or is_drawn else f"most{of_modules}, {share} of the kernel time"
        described.append(f"{name} takes {most}; most of that is {FAMILIES[row['family']].label}")
        if is_around and _LOSS.search(row["kernel"]):
            described[-1] += f"; its largest kernel computes a loss: {kernel}"
        elif is_around and compiled_graphs.is_generated(row["kernel"]):
            described[-1] += f"; its largest kernel is {kernel}"
    for share in table["share"][table["name"] == vocabulary.LOSS_MODULE]:
        if described and share > listed["share"].max():
            described.append(f"The loss, which is outside of all modules, takes more: {format_cell('share', share)}")
    return described


def find_missing(capture: Capture, attribution: Attribution) -> dict[str, str]:
    """Find what keeps kernels of torch.compile from having modules: what is missing, and what follows. The entire
    capture is given."""
    names = capture.kernels["kernel_name"].cat.categories
    if not any(compiled_graphs.is_generated(str(name)) for name in names):
        return {}
    if LINKED not in attribution.kernels:
        return {_MISSING: _NOT_FOLLOWED}
    return {} if compiled_graphs.read_graphs(attribution.ranges) else {_MISSING: _NO_GRAPHS}
