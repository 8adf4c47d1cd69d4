"""What pydantic finds wrong, in this program's words."""

import json

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from profiler_job.analysis.prediction import ledger
from profiler_job.analysis.recording import ingest, store
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.invalid_data import describe_invalid
from profiler_job.jobs.contract.layout import FinishedRecord, read_record
from profiler_job.jobs.sweep.plan import load_sweep

WORDS_OF_PYDANTIC = ("Value error", "Assertion failed", "Input should", "validation error")


class Numbers(BaseModel):
    count: int = Field(default=1)

    @field_validator("count")
    @classmethod
    def check(cls, count: int) -> int:
        if count < 0:
            raise ValueError("less than nothing")
        assert count < 10, "too many"
        return count


@pytest.mark.parametrize(
    "count, told", [(-1, "less than nothing"), (10, "too many"), ("x", "should be a valid integer")]
)
def test_a_problem_is_its_key_and_what_is_wrong(count, told):
    with pytest.raises(ValidationError) as caught:
        Numbers(count=count)
    key, why = describe_invalid(caught.value)
    assert key == "count" and why.startswith(told) and not any(words in why for words in WORDS_OF_PYDANTIC)


@pytest.mark.parametrize("content", [{"runs": 3}, {"size": [1e9]}, {"name": "../x"}, {"predictions": [{}]}, {}])
@pytest.mark.parametrize(
    "read",
    [
        load_sweep,
        ledger.read,
        ingest.read_plan,
        lambda file: read_record(file, FinishedRecord),
        lambda file: store.read_manifest(file.parent),
    ],
    ids=["sweep", "ledger", "plan", "record", "manifest"],
)
def test_messages_have_no_words_of_pydantic(tmp_path, read, content):
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(content))
    try:
        read(file)
    except ProfilerError as error:
        assert not any(words in str(error) for words in WORDS_OF_PYDANTIC), str(error)
