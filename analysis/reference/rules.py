"""Rules that explain names, in TOML files: of kernels, built in or of a user, and of calls of the CUDA API."""

import re
import tomllib
from collections.abc import Collection, Iterable
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from profiler_job.jobs.contract.errors import CodedError


class RuleProblem(StrEnum):
    """What is wrong with a file of rules."""

    UNREADABLE = "unreadable"
    NOT_TOML = "not_toml"
    NO_RULES = "no_rules"
    UNKNOWN_KEY = "unknown_key"
    MISSING_KEY = "missing_key"
    NOT_TEXT = "not_text"
    UNKNOWN_FAMILY = "unknown_family"
    NOT_A_PATTERN = "not_a_pattern"
    MATCHES_ALL = "matches_all"
    MISSES_EXAMPLE = "misses_example"


class RuleError(CodedError[RuleProblem]):
    """A file of rules cannot be used. The message names the file, the rule and what to do."""


class Rule(NamedTuple):
    """One row of the taxonomy.

    `name` is unique. `pattern` is a regular expression searched in the name, ignoring case. `example` is a real name
    that it matches. `explanation` says what such a kernel or call does and where a Transformer uses it.
    """

    name: str
    family: str
    part: str
    pattern: str
    example: str
    explanation: str
    source: str = ""


class Classification(NamedTuple):
    """The class of a kernel name by the taxonomy; `rule_index` is the rule's place in the order, -1 if none matched."""

    family: str
    part: str
    rule: str
    rule_index: int


OTHER = "other"
UNCLASSIFIED = Classification(OTHER, "", "", -1)


class Taxonomy:
    """An ordered set of rules that classifies names, remembering each name it has seen."""

    def __init__(self, rules: Iterable[Rule]):
        self.rules = tuple(rules)
        self._patterns = [re.compile(rule.pattern, re.IGNORECASE | re.DOTALL) for rule in self.rules]
        self.classify = lru_cache(maxsize=100_000)(self._classify)

    def _classify(self, name: str) -> Classification:
        for index, (rule, pattern) in enumerate(zip(self.rules, self._patterns, strict=True)):
            if pattern.search(name):
                return Classification(rule.family, rule.part, rule.name, index)
        return UNCLASSIFIED

    def family(self, name: str) -> str:
        """Return the key of the family of a name, `other` if no rule matches."""
        return self.classify(name).family

    def find_rule(self, classification: Classification) -> Rule | None:
        """Return the rule of a classification made by this taxonomy; None if nothing matched."""
        return self.rules[classification.rule_index] if classification.rule_index >= 0 else None


_REQUIRED = ("family", "pattern")
_OPTIONAL = ("name", "part", "example", "explanation", "source")


def load_rules(path: Path | str, families: Collection[str]) -> tuple[Rule, ...]:
    """Load the rules of a TOML file of `[[rule]]` tables, in the order of the file.

        [[rule]]
        family = "attention"              # one of `families`
        pattern = "my_attn_.*_kernel"     # regular expression, searched anywhere in the name, ignoring case
        part = "fused"                    # optional, as are name, explanation and source
        example = "my_attn_fwd_kernel"    # optional: a kernel name; it is an error if the pattern does not match it

    Raises RuleError.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RuleError(RuleProblem.UNREADABLE, f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RuleError(RuleProblem.NOT_TOML, f"{path}: not valid TOML: {error}") from error
    unknown = sorted(set(content) - {"rule"})
    tables = content.get("rule", [])
    if unknown or not isinstance(tables, list) or not tables:
        hint = f"unknown key {unknown[0]!r}; " if unknown else ""
        raise RuleError(
            RuleProblem.UNKNOWN_KEY if unknown else RuleProblem.NO_RULES,
            f"{path}: {hint}expected one or more [[rule]] tables with {' and '.join(_REQUIRED)}",
        )
    return tuple(_parse_rule(path, number, table, families) for number, table in enumerate(tables, start=1))


def _parse_rule(path: Path, number: int, table: dict[str, Any], families: Collection[str]) -> Rule:
    where = f"{path}: rule {number}"
    for key in table:
        if key not in _REQUIRED + _OPTIONAL:
            raise RuleError(
                RuleProblem.UNKNOWN_KEY, f"{where}: unknown key {key!r}; allowed: {', '.join(_REQUIRED + _OPTIONAL)}"
            )
    for key in _REQUIRED:
        if not table.get(key):
            raise RuleError(RuleProblem.MISSING_KEY, f"{where}: {key!r} is missing")
    for key, value in table.items():
        if not isinstance(value, str):
            raise RuleError(RuleProblem.NOT_TEXT, f"{where}: {key!r} must be a string, not {value!r}")
    if table["family"] not in families:
        raise RuleError(
            RuleProblem.UNKNOWN_FAMILY,
            f"{where}: family {table['family']!r} is unknown; choose one of {', '.join(families)}",
        )
    try:
        pattern = re.compile(table["pattern"], re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise RuleError(
            RuleProblem.NOT_A_PATTERN, f"{where}: pattern {table['pattern']!r} is not a regular expression: {error}"
        ) from error
    if pattern.search(""):
        raise RuleError(
            RuleProblem.MATCHES_ALL, f"{where}: pattern {table['pattern']!r} matches every name; make it more specific"
        )
    example = table.get("example", "")
    if example and not pattern.search(example):
        raise RuleError(
            RuleProblem.MISSES_EXAMPLE, f"{where}: pattern {table['pattern']!r} does not match its example {example!r}"
        )
    return Rule(
        name=table.get("name", f"user-{number}"),
        family=table["family"],
        part=table.get("part", ""),
        pattern=table["pattern"],
        example=example,
        explanation=table.get("explanation", f"Rule {number} of {path.name}."),
        source=table.get("source", path.name),
    )
