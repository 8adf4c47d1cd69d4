"""An axis of the sweep is defined in one place: run ids, sweep files, columns and labels derive from it."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

from profiler_job.analysis.recording.table_schema import TABLES
from profiler_job.jobs.contract import axes
from profiler_job.jobs.contract.axes import AXES, Run, find_default, find_listed_axes, find_value_label, order_axes
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.sweep.block import Block

ROOT = Path(__file__).parents[2]
RUN = Run(size="small", context_length=128, mode="forward", precision="fp32", attention="naive")

NEW_AXIS = """
    activation: Annotated[
        Literal["swiglu", "relu"],
        Axis(order=50, label="activation", token="act_{}".format, meaning="swiglu | relu"),
    ] = "swiglu"
"""


def test_the_modes_of_the_axis_are_those_that_have_phases():
    assert get_args(axes.Mode) == MODES


def test_a_run_at_its_defaults_is_named_by_its_case():
    assert RUN.run_id == "small-ctx128-fp32-naive-forward"


def test_what_is_not_at_its_default_is_named_once():
    changed = {"batch_size": 8, "compile": "default", "optimizer": "fused", "memory_limit_gib": 22.5, "repeat": 2}
    run = RUN.model_copy(update=changed | {"fresh_process": True, "workload": "my.models:build"})
    assert run.run_id == (
        "small-ctx128-fp32-naive-forward-batch8-compile_default-adamw_fused-limit22.5-fresh-repeat2-my.models.build"
    )


def test_every_field_of_a_run_is_a_column_with_its_meaning():
    columns = {column.name: column for column in TABLES["runs"]}
    assert set(Run.model_fields) <= set(columns)
    assert all(columns[name].meaning for name in Run.model_fields)
    assert all(columns[name].before == find_default(name) for name in Run.model_fields)


def test_every_listed_axis_is_a_list_in_a_sweep_file():
    assert set(find_listed_axes()) <= set(Block.model_fields)


def test_orders_are_unique_and_modes_come_innermost():
    orders = [axis.order for axis in AXES.values() if axis.order is not None]
    assert len(set(orders)) == len(orders)
    assert order_axes()[0] == "size" and order_axes()[-1] == "mode"


def test_pages_call_values_by_their_labels_and_recordings_keep_them():
    assert find_value_label("attention", "naive") == "eager"
    assert find_value_label("optimizer", "own") == "reference"
    assert find_value_label("attention", "flash") == "flash"
    assert find_value_label("kernel_name", "naive") == "naive"


def test_a_new_axis_is_one_field_and_everything_but_the_work_follows(tmp_path):
    """The contract with one field more, in a process of its own: run ids, sweep files, --only, columns and headings."""
    source = Path(axes.__file__).read_text()
    package = tmp_path / "profiler_job"
    for name in ("jobs", "analysis"):
        shutil.copytree(ROOT / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").touch()
    (package / "jobs" / "contract" / "axes.py").write_text(
        source.replace("    num_parameters: Annotated[Count", NEW_AXIS + "    num_parameters: Annotated[Count", 1)
    )
    program = (
        "from profiler_job.jobs.sweep.plan import Sweep, select\n"
        "from profiler_job.jobs.contract.axes import AXES, find_label\n"
        "from profiler_job.analysis.recording.table_schema import TABLES\n"
        "from profiler_job.analysis.metrics.run_grid import VARIANT_AXES\n"
        "sweep = Sweep.model_validate({'name': 'x', 'size': ['small'], 'context_length': [8], 'mode': ['forward'],"
        " 'activation': ['swiglu', 'relu']})\n"
        "orders = [axis.order for axis in AXES.values() if axis.order is not None]\n"
        "assert len({*orders}) == len(orders), orders\n"
        "from profiler_job.jobs.memory import is_predictable\n"
        "print([is_predictable(run) for run in sweep.runs], [run.run_id for run in sweep.runs],"
        " [run.run_id for run in select(sweep.runs, 'activation=relu')],"
        " find_label('activation'), 'activation' in [one.name for one in TABLES['runs']], 'activation' in VARIANT_AXES)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == (
        "[True, False] ['small-ctx8-fp32-naive-forward', 'small-ctx8-fp32-naive-forward-act_relu'] "
        "['small-ctx8-fp32-naive-forward-act_relu'] activation True True"
    ), done.stderr
