"""The messages between the job and its worker follow the contract, whoever sends them."""

import ast
from pathlib import Path
from typing import get_args

from profiler_job.analysis.recording.manifest_fields import Manifest
from profiler_job.jobs.contract import messages
from profiler_job.jobs.contract.layout import MACHINE_FIELDS

ROOT = Path(__file__).parents[2]


def test_what_a_worker_and_a_manifest_tell_of_the_machine_is_what_a_record_does():
    assert set(messages.Facts.__annotations__) < set(MACHINE_FIELDS)
    assert set(MACHINE_FIELDS) - {"gpu_name", "gpu_memory_bytes"} < set(Manifest.model_fields)


def test_every_event_that_the_worker_sends_is_one_of_the_contract():
    known = {value for kind in get_args(messages.Answer) for value in get_args(kind.__annotations__["event"])}
    files = [ROOT / "jobs" / "worker" / f"{name}.py" for name in ("service", "answers", "turns")]
    trees = [ast.parse(file.read_text()) for file in files]
    dictionaries = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    sent = {
        constant.value
        for node in dictionaries
        for key, value in zip(node.keys, node.values)
        if isinstance(key, ast.Constant) and key.value == "event"
        for constant in ast.walk(value)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
    }
    assert sent == known
