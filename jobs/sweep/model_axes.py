"""Models in a sweep file other than the reference Transformer: axes of a workload, Hugging Face configurations."""

import json
import os
import re
from collections.abc import Mapping
from hashlib import sha256
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from profiler_job.jobs.contract.options import WORD, Option

DIGITS = 12  # of a SHA-256, enough to tell files apart


def _check_option(value: object) -> object:
    is_number = isinstance(value, bool | int) or (isinstance(value, float) and abs(value) < float("inf"))
    is_word = isinstance(value, str) and re.fullmatch(WORD, value, re.ASCII) and value not in ("true", "false")
    if not (is_number or is_word) or len(str(value)) > 64:
        raise ValueError("should be a number, true, false, or a word of letters, digits, dots and underscores")
    return value


def _check_names(axes: dict[str, list[Option]]) -> dict[str, list[Option]]:
    for name in axes:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or iskeyword(name) or len(name) > 64:
            raise ValueError(f"{name!r}: should be the name of a parameter, such as width")
    return axes


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


Values = Annotated[
    list[Annotated[Any, AfterValidator(_check_option)]], BeforeValidator(_as_list), Field(min_length=1, max_length=1000)
]
OptionAxes = Annotated[dict[str, Values], AfterValidator(_check_names)]
"""Keyword arguments of a workload, each with its values; a single value is a list of one."""


def derive_config_name(file: str) -> str:
    """Derive the name of a model from its file, or from the folder of a file config.json. A dash becomes `_`, since
    dashes join the parts of a run id."""
    path = Path(file)
    name = path.parent.name if path.stem == "config" else path.stem
    return re.sub(r"[^A-Za-z0-9._]", "_", name)[:64].lstrip("._") or "model"


class HuggingFace(BaseModel):
    """`config`: files of configurations, from the folder of the sweep file. All other keys change what they say: each
    has a list of values, and is an axis."""

    model_config = ConfigDict(extra="forbid")

    config: Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
    changes: OptionAxes = Field(default_factory=dict)
    _configs: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def gather_changes(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            raise ValueError("should be keys and values, such as {config: gpt2.json}")
        return {"config": content.get("config"), "changes": {k: v for k, v in content.items() if k != "config"}}

    @model_validator(mode="after")
    def read(self, info: ValidationInfo) -> "HuggingFace":
        folder = (info.context or {}).get("folder", Path())
        for file in self.config:
            name = derive_config_name(file)
            if name in self._configs:
                raise ValueError(f"config: two are called {name}; rename a file")
            self._configs[name] = describe_config(folder / file)
        return self

    @property
    def configs(self) -> Mapping[str, str]:
        """The description of each configuration in a run, by the name of the model: `FILE sha256:DIGEST`. The
        file is relative to where the job is started."""
        return self._configs


def describe_config(file: Path) -> str:
    """Return `FILE sha256:DIGEST`. Raises ValueError if the file is not a configuration of transformers."""
    try:
        content = file.read_bytes()
        values = json.loads(content)
    except OSError as error:
        raise ValueError(f"config: {file}: cannot be read ({error.strerror}); paths begin at the sweep file") from None
    except ValueError as error:
        raise ValueError(f"config: {file}: no JSON ({error})") from None
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise ValueError(f"config: {file}: has no model_type, such as gpt2; give the config.json of a model")
    return f"{os.path.relpath(file)} sha256:{sha256(content).hexdigest()[:DIGITS]}"
