"""A precision is one entry of the contract; everything that depends on it reads that entry."""

import ast
import subprocess
import sys
from pathlib import Path

from profiler_job.analysis.reference.gemm_names import MATH_PATHS
from profiler_job.analysis.reference.gpus import GPUS
from profiler_job.analysis.reference.gpus import PRECISIONS as PEAKS
from profiler_job.jobs.contract.precisions import BASE_PRECISION, PRECISIONS

ROOT = Path(__file__).resolve().parents[2]

MAY_COMPARE = {
    "matmul_precision",  # the setting of PyTorch
    "findings", "gemm_names", "reconciliation_checks", "text",  # math paths of kernels
    "attention", "device_memory", "precisions", "precision",  # comparisons of two given precisions
    "bounds",  # says what limits steps in the precision that people train in
}  # fmt: skip
"""The modules that compare with the name of a precision."""

PROGRAM = """
from profiler_job.jobs.contract.precisions import PRECISIONS, PrecisionRecord
PRECISIONS["fp8"] = PrecisionRecord(label="FP8", name="FP8 matmuls", element_bytes=1, fraction_bits=3,
    autocast="bfloat16", gemm_paths=("fp8",), peak="fp8", sustained_flops=900e12)
from profiler_job.jobs.contract.axes import find_value_name
from profiler_job.jobs.memory import is_predictable
from profiler_job.jobs.sweep.plan import Sweep
from profiler_job.jobs.workloads.costs_by_name import find_costs
from profiler_job.analysis.answers import capture_facts
from profiler_job.analysis.metrics.precisions import FRACTION_BITS, SLOWER
sweep = Sweep.model_validate({"name": "x", "size": ["small"], "context_length": [1024], "mode": ["forward"],
                              "batch_size": 64, "precision": ["bf16", "fp8"]})
bf16, fp8 = sorted(sweep.runs, key=lambda run: run.precision)
seconds = [find_costs(run.workload).step_seconds(run) for run in (bf16, fp8)]
print(fp8.run_id, find_value_name("precision", "fp8"), is_predictable(bf16), is_predictable(fp8),
      seconds[1] < seconds[0], FRACTION_BITS["fp8"], SLOWER["fp8"], capture_facts._PRECISIONS["fp8"],
      capture_facts._PRECISIONS["bfloat16"])
"""


def test_a_new_precision_is_one_entry_and_sweeps_plan_with_it(tmp_path):
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path)
    assert (
        done.stdout.strip() == "small-ctx1024-fp8-naive-forward-batch64 FP8 matmuls True False True 3 bf16 fp8 bf16"
    ), done.stderr


def test_each_precision_has_a_peak_in_the_data_sheets():
    assert {record.peak for record in PRECISIONS.values()} <= set(PEAKS)
    assert all(gpu.peak_flops(PRECISIONS[BASE_PRECISION].peak) for gpu in GPUS)


def test_the_paths_of_matmuls_are_those_that_kernels_are_read_as():
    assert {path for record in PRECISIONS.values() for path in record.gemm_paths} <= set(MATH_PATHS)


def test_few_places_compare_with_the_name_of_a_precision():
    found = set()
    for folder in ("jobs", "analysis"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Compare):
                    parts = [part for side in (node.left, *node.comparators) for part in ast.walk(side)]
                    if any(isinstance(part, ast.Constant) and part.value in PRECISIONS for part in parts):
                        found.add(file.stem)
    assert found <= MAY_COMPARE, "read the entry of the precision instead"


MAY_LIST = {
    "element_types", "findings", "gemm_names",  # what kernels' names say
    "tune_bounds",  # of two settings of PyTorch
    "precision",  # facts of one claim
    "precisions",
}  # fmt: skip


def test_few_tables_list_names_of_precisions():
    """One without a new precision would leave it out without a word."""
    found = set()
    for file in (file for folder in ("jobs", "analysis") for file in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Dict):
                names = [key.value for key in node.keys if isinstance(key, ast.Constant) and key.value in PRECISIONS]
                found |= {file.stem} if len(names) > 1 else set()
    assert found <= MAY_LIST, "derive it from the entries of the contract"
