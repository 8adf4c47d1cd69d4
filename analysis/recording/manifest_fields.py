"""The fields of a recording's manifest and their types: what is read of it, and what of it may be published."""

from pydantic import BaseModel, ConfigDict, FiniteFloat


class _Allowed(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class RunStatus(_Allowed):
    run_id: str
    status: str
    phase: str | None = None
    message: str | None = None


class PublishedRate(_Allowed):
    figure: str
    unit: str
    value: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat
    repeats: int
    gpu_name: str = ""


class Manifest(_Allowed):
    """The fields of a published manifest, without its tables. Older ones have fewer."""

    name: str
    created: str = ""
    gpu: str = ""
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    nsys: str = ""
    python: str = ""
    commit: str = ""
    recorded_from: str = ""
    recorded_to: str = ""
    sweep: str = ""
    study: str = ""
    protocol: dict[str, list[int]] = {}
    script: bool = False
    problems: dict[str, list[str]] = {}
    nsys_schema: str = ""
    not_run: list[str] = []
    without_captures: bool = False
    calibration: list[PublishedRate] = []
    runs: list[RunStatus] = []


class WrittenTable(_Allowed):
    """A table in a manifest. Older ones have no SHA-256."""

    rows: int
    bytes: int
    sha256: str = ""


class ReadManifest(Manifest):
    """What is read of a manifest."""

    name: str = ""
    tables: dict[str, WrittenTable] = {}
