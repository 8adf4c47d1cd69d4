"""Facts about the captures of a folder that no capture holds: model size, context length, batch size, mode, precision.

Each fact comes from the first of these that gives it: `captures.toml` or `captures.csv` in the folder, the options of
the command, the name of the file and of its folders, the names of its ranges where a fact of NEEDED still lacks. What
kernels show is added by `captures_recording`.
"""

import csv
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from profiler_job.analysis.capture.capture_data import ExportError
from profiler_job.analysis.capture.nsys_export import read
from profiler_job.analysis.capture.profiles import find_profiles
from profiler_job.jobs.contract.errors import ProfilerError
from profiler_job.jobs.contract.handouts import HANDOUTS, Shape, find_shapes
from profiler_job.jobs.contract.layout import STATUSES
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.precisions import PRECISIONS
from profiler_job.jobs.contract.printable import make_printable

FACT_FILES = ("captures.toml", "captures.csv")
NUMBERS = ("context_length", "batch_size", "d_model", "d_ff", "num_layers", "num_heads", "vocab_size", "warmup")
TEXTS = ("size", "mode", "precision", "status")
FACTS = (*TEXTS, *NUMBERS)
NEEDED = {"size": "--size", "context_length": "--context-length"}
"""Facts without which a capture has no place in a table, and the option that gives each."""
FILE, OPTION, NAME, HANDOUT, RANGE = "file of facts", "option", "file name", "hand-out", "range"
"""Where a fact is from."""

MODE_WORDS = {
    "train_step": (
        r"(?:fwd|forward)[-_+ ]?(?:bwd|backward)[-_+ ]?opt(?:im(?:izer)?)?|opt|train(?:ing)?(?:[-_ ]?steps?)?|"
        r"full(?:[-_ ]?steps?)?|optim(?:izer)?(?:[-_ ]?step)?|adamw?|complete"
    ),
    "forward_backward": r"(?:fwd|forward)[-_+ ]?(?:and[-_ ]?)?(?:bwd|backward)|fb|backward|bwd",
    "forward": r"(?:fwd|forward)(?:[-_ ]?(?:only|pass))?|inference|infer|eval|no[-_ ]?(?:bwd|backward|grad)",
}
"""Names of modes in file names of public repositories of the class; the first that is found counts."""
_SIZE = r"small|medium|large|xl|2[-._p]7b|10b"
_SEPARATOR = r"(?:^|[-_ ./=,+@()])"
_END = r"(?=$|[-_ ./=,+@()])"
_NAMED_NUMBERS = {
    "context_length": r"(?:context[-_ ]?len(?:gth)?|context|ctx[-_ ]?len|ctx|seq[-_ ]?len(?:gth)?|seq|len(?:gth)?|"
    "cl|s|c|t)",
    "batch_size": r"(?:batch[-_ ]?size|batch|bsz?|b)",
    "d_model": r"(?:d[-_ ]?model|dm|d)",
    "d_ff": r"(?:d[-_ ]?ff|dff|ff)",
    "num_layers": r"(?:num[-_ ]?layers|n[-_ ]?layers|layers|l)",
    "num_heads": r"(?:num[-_ ]?heads|n[-_ ]?heads|heads|h)",
}
_RANGE_NUMBERS = {
    "context_length": r"(?:(?:context|ctx)(?:[-_ ]?len(?:gth)?)?|seq(?:uence)?[-_ ]?len(?:gth)?)",
    "batch_size": r"(?:batch[-_ ]?size|bsz)",
}
"""The words of `_NAMED_NUMBERS` that mean nothing else in the name of a range, where `c 3` may be a chunk."""
_EMBEDDED = re.compile(r"(?:aten::)?embedding, .*sizes = \[\[\d+, \d+\], \[(\d+), (\d+)\]")
"""The look-up of a batch of sequences, as PyTorch names it where sizes of tensors are recorded."""
_PRECISIONS = {name: name for name in PRECISIONS} | {"bfloat16": "bf16", "float32": "fp32", "fp16": "fp16"}
_LEAST_CONTEXT = 32
_GPU = r"(?:[ghb]|gb|gh)?[abhv](?:10|30|40|100|200|300)[gs]?|l40s?|t4|rtx[-_ ]?\w*"
"""GPUs whose names look like a number of heads or tokens, or a batch: h100 is not 100 heads."""


class FactsError(ProfilerError, ValueError):
    """Facts about captures that are missing, wrong, or contradict each other."""


@dataclass(kw_only=True)
class CaptureFacts:
    """What is known of one capture before it is read.

    path: of the capture, None for a row of a file of facts that has none, such as a run that was out of memory. name:
    the path in the folder, without suffix. known: facts by name; where: the source of each.
    """

    path: Path | None
    name: str
    known: dict[str, Any] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)

    def learn(self, facts: Mapping[str, Any], source: str) -> None:
        """Add the facts that are not known yet."""
        for name, value in facts.items():
            if value is not None and name not in self.known:
                self.known[name], self.where[name] = value, source


def collect_facts(
    folder: Path, options: Mapping[str, Any], pattern: str = "", handout: int = 0, ready: Iterable[Path] | None = None
) -> list[CaptureFacts]:
    """Collect the facts about every capture below `folder`. options: facts that hold for all captures, None where not
    given. pattern: names of files, such as "{size}_ctx{context}_{mode}". handout: year whose sizes, vocabulary and
    batch are meant; 0 if not known. Raises FactsError, which names every fact that is missing, and how to give it."""
    rows, common = read_fact_file(folder)
    handout = int(common.pop("handout", 0) or handout)
    if handout and handout not in HANDOUTS:
        raise FactsError(f"there is no hand-out of {handout}: choose from {', '.join(map(str, HANDOUTS))}")
    own = common.pop("sizes", {})
    captures = []
    paths = find_captures(folder) if ready is None else [*ready]
    absent_rows = [row for row in rows if not any(_matches(str(row.get("file") or ""), path, folder) for path in paths)]
    for path in paths:
        facts = CaptureFacts(path=path, name=_name(path, folder))
        for row in rows:
            if row.get("file") and _matches(str(row["file"]), path, folder):
                facts.learn({name: row.get(name) for name in FACTS}, FILE)
        facts.learn(common, FILE)
        facts.learn(options, OPTION)
        facts.learn(parse_with(pattern, facts.name) if pattern else parse_name(facts.name), NAME)
        if any(name not in facts.known for name in NEEDED) and facts.known.get("status", "ok") == "ok":
            facts.learn(_read_range_facts(path), RANGE)
        captures.append(facts)
    for number, row in enumerate(rows):
        if row in absent_rows:
            if row.get("file") and "status" not in row:
                name = make_printable(str(row["file"]))
                raise FactsError(
                    f"{folder} holds no capture {name}, which the file of facts names: correct the name, or give "
                    'status = "oom" if the run did not fit'
                )
            absent = CaptureFacts(path=None, name=str(row.get("file") or f"row {number + 1} of the file of facts"))
            absent.learn({name: row.get(name) for name in FACTS}, FILE)
            absent.learn(common, FILE)
            captures.append(absent)
    for facts in captures:
        _add_shape(facts, own, handout)
    _refuse_unknown(captures, pattern)
    return captures


def find_captures(folder: Path) -> list[Path]:
    """List the captures in a folder and its folders, by path."""
    folders = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    captures = [path for each in folders for path in find_profiles(each)]
    return sorted(dict.fromkeys(captures))


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix() if path.is_file() else _relative(path, folder)


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _matches(wanted: str, path: Path, folder: Path) -> bool:
    names = (_relative(path, folder), path.name, path.stem)
    return any(name == wanted or fnmatch(name, wanted) for name in names) or Path(wanted).stem == path.stem


# ------------------------------------------------------------------------------------------------------ a file of facts


def read_fact_file(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Read the rows of the file of facts in a folder, one for each capture, and the facts that hold for all (with
    `handout` and `sizes`, if it gives them); nothing if there is none. Raises FactsError."""
    files = [folder / name for name in FACT_FILES if (folder / name).is_file()]
    if len(files) > 1:
        raise FactsError(f"{folder} holds {' and '.join(FACT_FILES)}: keep one of them")
    if not files:
        return [], {}
    table: list[dict[Any, Any]] = []
    content: dict[str, Any] = {}
    try:
        if files[0].suffix == ".csv":
            with open(files[0], encoding="utf-8-sig", newline="") as opened:
                table = [*csv.DictReader(opened)]
        else:
            content = tomllib.loads(files[0].read_text(encoding="utf-8"))
    except (OSError, ValueError, csv.Error) as error:
        raise FactsError(f"{files[0]} cannot be read ({error}): correct it, or remove it") from error
    rows, sizes = content.pop("capture", table), content.pop("sizes", {})
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FactsError(f"{files[0]}: write each capture as a table [[capture]]")
    common = {name: content.pop(name) for name in ("handout",) if name in content}
    common |= _check_row(content, files[0])
    shapes = {str(name): _check_shape(str(name), shape, files[0]) for name, shape in dict(sizes).items()}
    return [_check_row(row, files[0]) for row in rows], common | ({"sizes": shapes} if shapes else {})


def _check_row(row: Mapping[Any, Any], file: Path) -> dict[str, Any]:
    """Return what a row gives, with its types. Raises FactsError."""
    checked: dict[str, Any] = {}
    for key, value in row.items():
        name = _ALIASES.get(str(key).strip().lower(), str(key).strip().lower())
        if name not in (*FACTS, "file"):
            raise FactsError(f"{file}: {make_printable(str(key))} is not a fact: choose from file, {', '.join(FACTS)}")
        if value is None or str(value).strip() == "":
            continue
        checked[name] = str(value).strip()
        if name in NUMBERS:
            checked[name] = _read_number(name, checked[name], str(file))
    return _normalise(checked, str(file))


_ALIASES = {"context": "context_length", "ctx": "context_length", "seq_len": "context_length", "batch": "batch_size"}
_ALIASES |= {"capture": "file", "model": "size", "model_size": "size", "sequence_length": "context_length"}


def _read_number(name: str, value: str, where: str) -> int:
    if not re.fullmatch(r"\d{1,9}", value):
        raise FactsError(f"{where}: {name} is {make_printable(value)!r}, where a whole number should be")
    return int(value)


def _normalise(facts: dict[str, Any], where: str) -> dict[str, Any]:
    """Return facts with the names of sizes, modes and statuses that tables use. Raises FactsError."""
    if "size" in facts:
        facts["size"] = spell_size(facts["size"])
    if "mode" in facts and facts["mode"] not in MODES:
        mode = find_mode(facts["mode"])
        if not mode:
            name = make_printable(facts["mode"])
            raise FactsError(f"{where}: there is no mode {name!r}: choose from {', '.join(MODES)}")
        facts["mode"] = mode
    if wrong := [name for name in NUMBERS if facts.get(name, 1) < (name != "warmup")]:
        raise FactsError(f"{where}: {wrong[0]} is {facts[wrong[0]]}, which is too small")
    if "status" in facts:
        facts["status"] = facts["status"].lower()
    if "status" in facts and facts["status"] not in STATUSES:
        name = make_printable(facts["status"])
        raise FactsError(f"{where}: there is no status {name!r}: choose from {', '.join(STATUSES)}")
    return facts


def normalise_options(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that options give, with the names that tables use. Raises FactsError."""
    return _normalise({name: value for name, value in facts.items() if value is not None}, "options")


def _check_shape(name: str, shape: Any, file: Path) -> Shape:
    try:
        return Shape(**{key: int(value) for key, value in shape.items()})
    except (TypeError, ValueError, AttributeError):
        raise FactsError(f"{file}: sizes.{name} needs {', '.join(Shape._fields)}") from None


# ----------------------------------------------------------------------------------------------------------- file names


def spell_size(name: str) -> str:
    """Return the name of a size as the hand-outs write it: 2p7b is 2.7B."""
    plain = re.sub(r"(?<=\d)[-_p](?=\d)", ".", name.strip().lower())
    known = {size.casefold(): size for handout in HANDOUTS.values() for size in handout.sizes}
    return known.get(plain, name.strip())


def find_mode(word: str) -> str:
    """Return the mode that a word of a file name means, "" if it means none."""
    return next((mode for mode, names in MODE_WORDS.items() if re.fullmatch(names, word, re.IGNORECASE)), "")


def parse_name(name: str) -> dict[str, Any]:
    """Return the facts in the name of a capture and its folders, as public repositories of the class name them: size,
    mode and precision by their words, numbers by the word before them, and a context without a word if it is the only
    power of two from 32 on that has none."""
    text = name.lower()
    facts: dict[str, Any] = {}
    gpu = _GPU if re.search(rf"{_SEPARATOR}{_NAMED_NUMBERS['d_model']}[-_= ]?\d", text) else rf"{_GPU}|l4"
    while match := _last(rf"{_SEPARATOR}(?:{gpu}){_END}", text):
        text = _blank(text, match)
    if match := _last(rf"{_SEPARATOR}({_SIZE}){_END}", text):
        facts["size"] = spell_size(match[1])
        text = _blank(text, match)
    for fact, word in _NAMED_NUMBERS.items():
        least = _LEAST_CONTEXT if fact == "context_length" else 1
        matches = [*re.finditer(rf"{_SEPARATOR}{word}[-_= ]?(\d{{1,7}})(k?){_END}", text)]
        if large := [match for match in matches if _read_count(match) >= least]:
            facts[fact] = _read_count(large[-1])
            text = _blank(text, large[-1])
    if match := _last(rf"{_SEPARATOR}({'|'.join(_PRECISIONS)}){_END}", text):
        facts["precision"] = _PRECISIONS[match[1]]
    if match := _last(rf"{_SEPARATOR}(?:fwd|forward(?:[-_]?only)?)=(true|false){_END}", text):
        facts |= {"mode": "forward"} if match[1] == "true" else {}
        text = _blank(text, match)
    if match := _last(rf"{_SEPARATOR}no[-_ ]?(?:bwd|backward|grad){_END}", text):
        facts.setdefault("mode", "forward")
    for mode, words in MODE_WORDS.items():
        if "mode" not in facts and _last(rf"{_SEPARATOR}(?:{words}){_END}", text):
            facts["mode"] = mode
    alone = {_read_count(match) for match in re.finditer(rf"{_SEPARATOR}(\d{{1,7}})(k?){_END}", text)}
    powers = [number for number in alone if number >= _LEAST_CONTEXT and number & (number - 1) == 0]
    if "context_length" not in facts and len(powers) == 1:
        facts["context_length"] = powers[0]
    return facts


def parse_ranges(names: Iterable[str]) -> dict[str, Any]:
    """Return the facts that the names of ranges give: a context length and a batch size by the word before them or from
    the sizes of the tokens that are looked up, and the size of a name that has one of them, or nothing else. A fact for
    which two names have two values is left out."""
    values: dict[str, set[Any]] = {fact: set() for fact in ("size", *_RANGE_NUMBERS)}
    for text in map(str.lower, names):
        has_number = False
        if (tokens := _EMBEDDED.match(text)) and int(tokens[1]) > 1:  # one row are positions
            values["batch_size"].add(int(tokens[1]))
            values["context_length"].add(int(tokens[2]))
        for fact, word in _RANGE_NUMBERS.items():
            for match in re.finditer(rf"{_SEPARATOR}{word}[-_= :]*(\d{{1,7}})(k?){_END}", text):
                values[fact].add(_read_count(match))
                has_number = True
        size = _last(rf"{_SEPARATOR}({_SIZE}){_END}", text)
        if size and (has_number or size[1] == text.strip()):
            values["size"].add(spell_size(size[1]))
    return {fact: of_fact.pop() for fact, of_fact in values.items() if len(of_fact) == 1}


def _read_range_facts(path: Path) -> dict[str, Any]:
    try:
        names = read(path).ranges["name"]
    except ExportError:  # said with its reason when the capture is read for the answers
        return {}
    return parse_ranges(map(str, names.cat.categories))


def _read_count(match: re.Match[str]) -> int:
    """Return the number of a match: 1k is 1,024."""
    return int(match[1]) * (1024 if match[2] else 1)


def _last(pattern: str, text: str) -> re.Match[str] | None:
    """Find the last match: what the file itself is called comes after its folders."""
    matches = [*re.finditer(pattern, text)]
    return matches[-1] if matches else None


def _blank(text: str, match: re.Match[str]) -> str:
    return f"{text[: match.start()]}/{text[match.end() :]}"


def parse_with(pattern: str, name: str) -> dict[str, Any]:
    """Return the facts that a name pattern such as "{size}_ctx{context}_{mode}" finds in a name; none if it does not
    match. Raises FactsError for a pattern with unknown fields."""
    parts = re.split(r"\{(\w+)\}", pattern)
    fields = [_ALIASES.get(part, part) for part in parts[1::2]]
    if not fields or (unknown := [part for part in fields if part not in (*FACTS, "any")]):
        wrong = f"{{{unknown[0]}}} is not a fact" if fields else "it has no field"
        known = ", ".join(f"{{{name}}}" for name in ("size", "context", "mode", "batch", "precision", "any"))
        raise FactsError(f"--name-pattern {pattern!r}: {wrong}; write {known}")
    if twice := [part for part in fields if part != "any" and fields.count(part) > 1]:
        raise FactsError(f"--name-pattern {pattern!r}: {{{twice[0]}}} is there twice")
    expression = re.escape(parts[0])
    for number, (part, text) in enumerate(zip(fields, parts[2::2])):
        group = f"any{number}" if part == "any" else part
        expression += rf"(?P<{group}>{r'[0-9]+' if part in NUMBERS else '.+?'}){re.escape(text)}"
    match = re.fullmatch(expression, name, re.IGNORECASE) or re.fullmatch(expression, Path(name).name, re.IGNORECASE)
    if not match:
        return {}
    groups = {key: value for key, value in match.groupdict().items() if not key.startswith("any")}
    numbers = {key: int(value) for key, value in groups.items() if key in NUMBERS}
    return _normalise(groups | numbers, f"--name-pattern {pattern!r}, file {make_printable(name)}")


# ------------------------------------------------------------------------------------------------------------- the rest


def _add_shape(facts: CaptureFacts, own: Mapping[str, Shape], handout: int) -> None:
    """Add the shape of the size, by `own` sizes or the hand-out, and the size of a shape that a hand-out has."""
    known = facts.known
    sizes = HANDOUTS[handout].sizes if handout else {}
    if "size" not in known and all(name in known for name in Shape._fields):
        shape = Shape(**{name: known[name] for name in Shape._fields})
        years = [HANDOUTS[handout]] if handout else [*HANDOUTS.values()]
        named = dict.fromkeys(name for year in years for name, of_year in year.sizes.items() if of_year == shape)
        name = next(iter(named)) if len(named) == 1 else f"d{shape.d_model}_l{shape.num_layers}"
        facts.learn({"size": name}, HANDOUT if len(named) == 1 else facts.where["d_model"])
    if "size" not in known or (not handout and known["size"] not in own and "d_model" not in known):
        shapes = dict.fromkeys(find_shapes(known["size"]).values()) if "size" in known else {}
        of_size = next(iter(shapes)) if len(shapes) == 1 else None
    else:
        of_other_years = dict.fromkeys(find_shapes(known["size"]).values())
        of_size = own.get(known["size"]) or sizes.get(known["size"])
        of_size = of_size or (next(iter(of_other_years)) if len(of_other_years) == 1 else None)
    if of_size:
        facts.learn(of_size._asdict(), FILE if known["size"] in own else HANDOUT)
    if "size" in known and known["size"] not in own and find_shapes(known["size"]):
        facts.learn({"vocab_size": HANDOUTS[max(HANDOUTS)].vocab_size}, HANDOUT)  # the same in every year
    if handout:
        year = HANDOUTS[handout]
        facts.learn({"batch_size": year.batch_size, "vocab_size": year.vocab_size}, HANDOUT)


def is_ambiguous(size: str) -> bool:
    """Whether the hand-outs give this name to several shapes, as they do to xl."""
    return len(dict.fromkeys(find_shapes(size).values())) > 1


def _refuse_unknown(captures: Iterable[CaptureFacts], pattern: str) -> None:
    """Raise FactsError if a capture lacks a fact of NEEDED, or has a size that needs the year of the hand-out."""
    lacking = {
        facts.name: [name for name in NEEDED if name not in facts.known]
        for facts in captures
        if any(name not in facts.known for name in NEEDED)
    }
    if lacking:
        names = dict.fromkeys(name for each in lacking.values() for name in each)
        ways = ", ".join(NEEDED[name] for name in names)
        listed = "; ".join(f"{make_printable(name)}: {' and '.join(each)}" for name, each in lacking.items())
        unmatched = [name for name in lacking if pattern and not parse_with(pattern, name)]
        why = f"--name-pattern {pattern!r} does not match {len(unmatched)} of these names. " if unmatched else ""
        raise FactsError(
            f"not known of {len(lacking)} of the captures: {listed}. {why}Give each in captures.toml (a table "
            f'[[capture]] with file = ...), all with {ways}, or --name-pattern "{{size}}_ctx{{context}}_{{mode}}"'
        )
    for facts in captures:
        if is_ambiguous(facts.known["size"]) and "d_model" not in facts.known:
            raise FactsError(
                f"{make_printable(facts.name)}: the hand-outs give {facts.known['size']} two shapes; give --handout "
                f"{' or --handout '.join(map(str, HANDOUTS))}"
            )
