"""The taxonomy of GPU kernels: which family a kernel belongs to, found from its name alone.

`RULES` holds the rules of `kernel_families.toml` in their order; the first rule whose pattern is found in the name
wins. Patterns ignore case and match anywhere in the name. So they hold for demangled names as nsys prints them
(`<unnamed>`, `(int)4`) and as the PyTorch profiler prints them (`(anonymous namespace)`, `4`), and for most mangled
names.

Names lie, so the order matters: fused attention says `cutlass` and `wgmma`, a convolution says `gemm`, `splitKreduce`
says `reduce`, a hand-written softmax says nothing at all. NVTX ranges find what a name cannot
show: a hand-written norm, a plain AdamW.
"""

import re
import tomllib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple


class Family(NamedTuple):
    """One family of kernels: `key` in tables, `label` on pages, `explanation` in the glossary."""

    key: str
    label: str
    explanation: str


class Rule(NamedTuple):
    """One row of the taxonomy.

    `name` is unique. `pattern` is a regular expression searched in the kernel name, ignoring case. `example` is a real
    kernel name this rule catches. `explanation` says what such a kernel computes and where a Transformer uses it.
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
COMMUNICATION = "communication"
UNCLASSIFIED = Classification(OTHER, "", "", -1)

_FAMILY_ROWS = (
    Family(
        "gemm",
        "GEMM",
        "Dense matmuls: the linear layers, and QK^T and AV in eager attention. A matmul may need more than one launch: "
        "split-K kernels that add up partial results and epilogue kernels that finish the output count in its time, "
        "but not as further matmuls.",
    ),
    Family(
        "attention",
        "Fused attention",
        "QK^T, scaling, mask, softmax and AV in one kernel (FlashAttention and its relatives): the scores never reach "
        "memory. The backward pass has helper kernels that belong to it.",
    ),
    Family(
        "convolution",
        "Convolution",
        "Convolutions, most of them computed as implicit GEMMs. A plain Transformer has none; patch embeddings and "
        "state-space layers launch them.",
    ),
    Family(
        "elementwise",
        "Elementwise",
        "One independent operation for each element: add, multiply, exp, sigmoid, where. They compute almost nothing "
        "for each byte that they move, so they are memory-bound or launch-bound. A hand-written softmax or norm and "
        "the reference AdamW are chains of them.",
    ),
    Family(
        "softmax",
        "Softmax",
        "Library softmax and log-softmax, forward and backward: inside cross-entropy, or in attention that calls the "
        "library. A hand-written softmax (max, sub, exp, sum, div) appears as reduce and elementwise kernels instead.",
    ),
    Family(
        "norm",
        "Normalisation",
        "Library LayerNorm, RMSNorm, BatchNorm and GroupNorm. A hand-written norm appears as reduce and elementwise "
        "kernels instead.",
    ),
    Family(
        "reduce",
        "Reduction",
        "Sums, means, maxima and norms along a dimension, and losses that end in one number: row statistics of "
        "softmax and norms, gradients of broadcast weights, gradient clipping.",
    ),
    Family(
        "copy",
        "Copy, cat, cast",
        "Moving elements without computing: making a tensor contiguous, concatenating, converting the data type, "
        "changing the layout. Mixed precision adds casts; splitting and merging heads adds copies.",
    ),
    Family(
        "fill",
        "Fill",
        "Writing a constant or a counter: zeroed gradients, masks, position indices.",
    ),
    Family(
        "index",
        "Gather, scatter, index",
        "Reading or writing at computed positions: embedding lookup and its gradient, the target's logit in "
        "cross-entropy, rearranging tokens between experts.",
    ),
    Family(
        "sort",
        "Sort, scan, top-k",
        "Sorting, prefix sums, selection and counting: sampling the next token, routing to experts, sorted "
        "embedding gradients.",
    ),
    Family(
        "random",
        "Random numbers",
        "Random numbers: dropout, weight initialisation, synthetic data, sampling.",
    ),
    Family(
        "optimizer",
        "Optimizer",
        "Kernels made for optimizers: updates of many tensors at once and fused Adam. An optimizer written in plain "
        "tensor operations, like the reference AdamW, appears as elementwise kernels; the NVTX range tells.",
    ),
    Family(
        "triton",
        "Triton, generated",
        "Kernels that a compiler (torch.compile) generated by fusing several operations; the name lists the "
        "operations.",
    ),
    Family(
        COMMUNICATION,
        "Communication",
        "Data between GPUs: all-reduce, all-gather, reduce-scatter, all-to-all. Their time includes waiting for the "
        "other GPUs.",
    ),
    Family(
        "memory",
        "Memcpy, memset",
        "The driver's own copies and fills, where a tool lists them among kernels.",
    ),
    Family(
        OTHER,
        "Unclassified",
        "No rule matched. Add one in a TOML file of your own, or to the taxonomy.",
    ),
)
FAMILIES: dict[str, Family] = {family.key: family for family in _FAMILY_ROWS}
"""Families by key, in display order."""

MAIN_GEMM_PARTS = frozenset({"main", "gemv"})
"""Parts of the gemm family that are a matmul; the others (splitk, epilogue) belong to the one launched before."""


class Taxonomy:
    """An ordered set of rules that classifies kernel names, remembering each name it has seen."""

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
        """Key of the family of kernel `name`, `other` if no rule matches."""
        return self.classify(name).family


_REQUIRED = ("family", "pattern")
_OPTIONAL = ("name", "part", "example", "explanation", "source")


def load_rules(path: Path | str) -> tuple[Rule, ...]:
    """Rules from a TOML file of `[[rule]]` tables, in the order of the file.

        [[rule]]
        family = "attention"              # one of FAMILIES
        pattern = "my_attn_.*_kernel"     # regular expression, searched anywhere in the name, ignoring case
        part = "fused"                    # optional, as are name, explanation and source
        example = "my_attn_fwd_kernel"    # optional: a kernel name; it is an error if the pattern does not match it

    Raises ValueError naming the file, the rule and what to do.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from error
    unknown = sorted(set(content) - {"rule"})
    tables = content.get("rule", [])
    if unknown or not isinstance(tables, list) or not tables:
        hint = f"unknown key {unknown[0]!r}; " if unknown else ""
        raise ValueError(f"{path}: {hint}expected one or more [[rule]] tables with {' and '.join(_REQUIRED)}")
    return tuple(_parse_rule(path, number, table) for number, table in enumerate(tables, start=1))


def _parse_rule(path: Path, number: int, table: dict[str, Any]) -> Rule:
    where = f"{path}: rule {number}"
    for key in table:
        if key not in _REQUIRED + _OPTIONAL:
            raise ValueError(f"{where}: unknown key {key!r}; allowed: {', '.join(_REQUIRED + _OPTIONAL)}")
    for key in _REQUIRED:
        if not table.get(key):
            raise ValueError(f"{where}: {key!r} is missing")
    for key, value in table.items():
        if not isinstance(value, str):
            raise ValueError(f"{where}: {key!r} must be a string, not {value!r}")
    if table["family"] not in FAMILIES:
        raise ValueError(f"{where}: family {table['family']!r} is unknown; choose one of {', '.join(FAMILIES)}")
    try:
        pattern = re.compile(table["pattern"], re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise ValueError(f"{where}: pattern {table['pattern']!r} is not a regular expression: {error}") from error
    if pattern.search(""):
        raise ValueError(f"{where}: pattern {table['pattern']!r} matches every name; make it more specific")
    example = table.get("example", "")
    if example and not pattern.search(example):
        raise ValueError(f"{where}: pattern {table['pattern']!r} does not match its example {example!r}")
    return Rule(
        name=table.get("name", f"user-{number}"),
        family=table["family"],
        part=table.get("part", ""),
        pattern=table["pattern"],
        example=example,
        explanation=table.get("explanation", f"Rule {number} of {path.name}."),
        source=table.get("source", path.name),
    )


RULES: tuple[Rule, ...] = load_rules(Path(__file__).with_suffix(".toml"))
"""The built-in taxonomy, in order."""

BUILT_IN = Taxonomy(RULES)


def classify(name: str, taxonomy: Taxonomy = BUILT_IN) -> Classification:
    """Family, part and rule of the kernel with the full (never truncated) demangled `name`."""
    return taxonomy.classify(name)


def find_family(name: str, taxonomy: Taxonomy = BUILT_IN) -> str:
    """Key of the family of kernel `name`: one of `FAMILIES`."""
    return taxonomy.classify(name).family


def is_main_gemm(name: str, taxonomy: Taxonomy = BUILT_IN) -> bool:
    """Whether kernel `name` is the main kernel of a matmul: exactly one launch per matmul.

    False for split-K and epilogue kernels, which belong to the matmul launched before them, and for fused attention.
    """
    classification = taxonomy.classify(name)
    return classification.family == "gemm" and classification.part in MAIN_GEMM_PARTS


def find_rule(classification: Classification, taxonomy: Taxonomy = BUILT_IN) -> Rule | None:
    """Find the rule of a classification made by the same `taxonomy`; None if nothing matched."""
    return taxonomy.rules[classification.rule_index] if classification.rule_index >= 0 else None


def add_user_rules(path: Path | str) -> Taxonomy:
    """The built-in taxonomy with the rules of a TOML file before it, so that the user's own win."""
    return Taxonomy((*load_rules(path), *RULES))
