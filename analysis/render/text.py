"""Numbers and names to text. Every name comes from a profile and is untrusted: it leaves here as Markup that is inert
in Markdown and in HTML."""

import hashlib
import html
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.jobs.contract.quantities import (
    Kind,
    format_number,
    format_quantity,
    format_rounded,
    format_share,
    format_thousands,
)
from profiler_job.jobs.contract.words import inflect, name_model

MINUS, THIN = "\u2212", "\u202f"
FILTERS = (
    "duration",
    "seconds",
    "percent",
    "percent_span",
    "points",
    "points_lost",
    "ratio",
    "ratio_span",
    "rough_ratio",
    "ratio_range",
    "percent_range",
    "rounded",
    "thousands",
    "count",
    "span",
    "quantity",
    "size",
    "parameters",
    "listing",
    "when",
    "day",
    "counted",
    "part_of",
    "beyond",
    "wall_noise",
)
"""Functions of this module that are filters of templates."""
MODEL_FAMILIES = {"llama": "Llama 3"}
"""Names of models whose sizes mean nothing alone, by workload."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufdd0\ufffe\uffff\ud800-\udfff]")
_MARKDOWN = re.compile(r"(?!(?<=[0-9A-Za-z])[-_=+](?=[0-9A-Za-z]))[^0-9A-Za-z .,;:/()?'·…×−–%÷\u0080-\U0010ffff]")
"""What Markdown or HTML might read; a hyphen or the like between two letters is none of it."""
_CODE = re.compile(r"[0-9A-Za-z _.,:;/()=+*#·…-]+")
"""Names that are safe between backticks, and in a cell of a table."""
_STRING = re.compile(r"""("[^"]*"|'[^']*')""")
_BREAKS = re.compile(r"(?<=[.,(\[=_])(?=\w)")
"""Where a line of code may break."""
_NOT_FILE = re.compile(r"[^0-9A-Za-z._-]+")


class FormatError(TypeError):
    """A template prints a value without saying how."""


def escape(text: object) -> Markup:
    """HTML for one line of untrusted text: control characters replaced, line breaks shown as a space."""
    clean = _CONTROL.sub("\ufffd", str(text).replace("\r", " ").replace("\n", " ").replace("\t", " "))
    return Markup(html.escape(clean, quote=True))


def inline(text: object) -> Markup:
    """Untrusted text inside a Markdown paragraph: every character that Markdown or HTML might read is an entity."""
    clean = _CONTROL.sub("\ufffd", str(text).replace("\r", " ").replace("\n", " ").replace("\t", " "))
    return Markup(_MARKDOWN.sub(lambda m: f"&#{ord(m[0])};", clean))


def code(name: object) -> Markup:
    """Untrusted name between backticks, or as text where a mark in it could end the code, or a cell."""
    clean = str(name)
    return Markup(f"`{clean}`") if _CODE.fullmatch(clean) else inline(clean)


def snippet(line: str) -> Markup:
    """HTML of a line of code that may break after a dot, a bracket, a comma, an underscore or an equals sign, but not
    inside a string."""
    parts = _STRING.split(line)
    return Markup("").join(
        Markup('<wbr><span class="whole">{}</span>').format(escape(part))
        if position % 2
        else Markup("<wbr>").join(escape(piece) for piece in _BREAKS.split(part))
        for position, part in enumerate(parts)
    )


def prose(sentence: str) -> Markup:
    """Our own sentence, `code` in backticks, QK^T with its T raised."""
    parts = sentence.replace("^T", "\u1d40").split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(inline(part)) if position % 2 else inline(part)
        for position, part in enumerate(parts)
    )


def prose_in_markdown(sentence: str) -> Markup:
    """`prose`, without tags."""
    parts = sentence.replace("^T", "\u1d40").split("`")
    return Markup("").join(code(part) if position % 2 else inline(part) for position, part in enumerate(parts))


def finalize(value: object) -> object:
    """Jinja2 hook: refuses whatever no filter has formatted, numbers above all."""
    if isinstance(value, Markup):
        return value
    raise FormatError(f"{value!r} needs a filter (ms, percent, count, text ...)")


# ---------------------------------------------------------------- numbers


def typeset(formatted: str) -> Markup:
    """A formatted quantity with a real minus sign, and a space that does not break."""
    return escape(formatted.replace("-", MINUS).replace(" ", THIN))


def number(value: float, decimals: int) -> str:
    """Fixed decimals, thousands separated, a real minus sign."""
    return format_number(value, decimals).replace("-", MINUS)


def quantity(value: float, unit: str = "") -> Markup:
    """A number whose unit its row names: s, ns, bytes, share, ratio, a rate, or none."""
    if unit == "s":
        return seconds(value)
    kind: Kind = {"ns": "time", "": "number"}.get(unit, unit)  # type: ignore[assignment]
    return typeset(format_quantity(kind, value))


def change(value: float, unit: str) -> Markup:
    """A quantity that B has more than A, or less, with its sign."""
    sign = MINUS if value < 0 else "+" if value > 0 else ""
    return Markup(sign) + quantity(abs(value), unit)


def duration(ns: float) -> Markup:
    return quantity(ns, "ns")


def seconds(value: float) -> Markup:
    return duration(1e9 * value)


def size(value: float) -> Markup:
    return quantity(value, "bytes")


def percent(fraction: float, decimals: int = 1) -> Markup:
    return typeset(format_share(fraction, decimals))


def points(fraction: float) -> Markup:
    sign = "+" if fraction > 0 else ""
    return Markup(f"{sign}{number(100 * fraction, 1)} points")


def points_lost(fraction: float) -> Markup:
    """The size of a change, for a sentence that says its direction."""
    return Markup(f"{number(100 * abs(fraction), 1)} points")


def ratio(value: float) -> Markup:
    return quantity(value, "ratio")


def count(value: float) -> Markup:
    return quantity(value, "count")


def rounded(value: float, unit: str) -> Markup:
    """Two significant digits, and all before the point: of ns, bytes, a share or a ratio."""
    kind: Kind = {"ns": "time"}.get(unit, unit)  # type: ignore[assignment]
    return typeset(format_rounded(kind, value))


def thousands(value: float) -> Markup:
    return Markup(format_thousands(value))


def name_size(run: Mapping[str, Any]) -> str:
    """Name the model of a run by its family, if it has one, and its size: `Llama 3 8B`, `large`."""
    return f"{MODEL_FAMILIES.get(str(run.get('workload')), '')} {run['size']}".strip()


def name_model_of(run: Mapping[str, Any]) -> str:
    """Name the model of a run as `name_model` does: `large (0.97B)`, `Llama 3 8B`."""
    return name_model(name_size(run), float(run.get("num_parameters") or math.nan))


def span(pair: tuple[int, int], noun: str) -> Markup:
    """`10 steps`, or `3–10 steps` where the two differ."""
    low, high = pair
    return counted(high, noun) if low == high else count(low) + Markup("\u2013") + counted(high, noun)


def ratio_span(pair: tuple[float, float]) -> Markup:
    return _span(pair, ratio)


def percent_span(pair: tuple[float, float], decimals: int = 1) -> Markup:
    return _span(pair, lambda fraction: percent(fraction, decimals))


def rough_ratio(value: float) -> Markup:
    """A ratio with two significant digits, as certain as a number over several cases is."""
    return Markup(f"{_round_roughly(value)}×")


def ratio_range(pair: tuple[float, float]) -> Markup:
    """`5.5–12×`, or one number where both read the same."""
    return Markup("\u2013".join(dict.fromkeys(map(_round_roughly, pair)))) + Markup("×")


def percent_range(pair: tuple[float, float]) -> Markup:
    """`21–43%`, or one number where both read the same."""
    low, high = (format_share(fraction, 0).removesuffix("%").replace("-", MINUS) for fraction in pair)
    return Markup("\u2013".join(dict.fromkeys((low, high)))) + Markup("%")


def _round_roughly(value: float) -> str:
    """Two significant digits, and all before the point."""
    return number(value, max(0, 1 - math.floor(math.log10(abs(value)) + 1e-9))) if value else "0"


def _span(pair: tuple[float, float], form: Callable[[float], Markup]) -> Markup:
    """`low to high`, or one number where both read the same."""
    low, high = map(form, pair)
    return low if low == high else low + Markup(" to ") + high


def when(moment: object, form: str = "%Y-%m-%d %H:%M UTC") -> Markup:
    """A moment, ISO 8601 or a timestamp, to the minute in UTC."""
    known = pd.to_datetime(moment, utc=True, errors="coerce")
    return inline("an unknown time" if pd.isna(known) else known.strftime(form))


def day(moment: object) -> Markup:
    return when(moment, "%Y-%m-%d")


def counted(number: float, noun: str) -> Markup:
    """`1 run`, `12 runs`, `2 passes`."""
    return count(number) + Markup(f" {inflect(number, noun)}")


def part_of(part: int, total: int, noun: str) -> Markup:
    """`3 of 20 cases`, `all 20 cases`, `both cases`, `the only case`, `none of 20 cases`, `no case`."""
    every = counted(total, noun)
    if part == total:
        few = {1: Markup(f"the only {noun}"), 2: every.replace("2", "both", 1)}
        return few.get(total, Markup("all ") + every)
    words = count(part) if part else Markup("none")
    return Markup(f"no {noun}") if total == 1 else words + Markup(" of ") + every


def beyond(noise: object | None) -> Markup:
    """How two times that are called different differ: by more than the noise band, where one is known."""
    if noise:
        return Markup("by more than the noise band")
    return Markup("without overlap of the intervals (no noise band is known)")


def wall_noise(noise: Mapping[str, Any] | None) -> Markup:
    """What a wait has to exceed to count as one: the noise band of wall times, where one is known."""
    if not noise:
        return Markup("the timed steps differ (no noise band is known)")
    return Markup("the noise band of its time (") + percent(noise["wall"]["of_time"]) + Markup(")")


def parameters(value: float) -> Markup:
    return Markup(f"{value / 1e9:.2f}{THIN}billion" if value >= 1e9 else f"{value / 1e6:.0f}{THIN}million")


def listing(names: Iterable[object]) -> Markup:
    """`a, b and c`."""
    words = [inline(name) for name in names]
    return Markup(", ").join(words[:-1]) + Markup(" and ") + words[-1] if len(words) > 1 else Markup("").join(words)


# ---------------------------------------------------------------- names


def file_name(name: str) -> str:
    """A run id or table key as a file name."""
    return _NOT_FILE.sub("_", name)[:120]


def kernel_anchor(name: str) -> str:
    """Anchor of a kernel in the glossary."""
    return "k-" + hashlib.sha1(name.encode("utf-8", "replace")).hexdigest()[:10]


_WRAPPED = re.compile(r"^(?:void )?(?:cutlass::)?(?:device_kernel|Kernel2?)<\s*([A-Za-z_][\w:]*)")
_XMMA = re.compile(r"(sm\d+_xmma_gemm)_\w+?_([nt]{2})_\w_tilesize(\d+x\d+x\d+)")
_OPERATION = re.compile(
    r"\b(\w*Functor\w*|\w+_functor|\w+Ops|\w+_kernel_cuda|\w+_cuda_kernel|\w+_kernel_impl|\w+_kernel)\b"
)
_DECORATION = re.compile(
    r"^CUDAFunctor(OnSelf)?_|_kernel_cuda$|_cuda_kernel$|_kernel_impl$|_kernel$|_?[Ff]unctor$|Ops$"
)
_WRAPPERS = {"gpu_kernel_impl", "BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor", "UnaryOpFunctor"}


def short_name(name: str, length: int = 64) -> str:
    """What a reader calls a kernel: its function and its operation, without template arguments. Not unique."""
    wrapped = _WRAPPED.match(name)
    if wrapped:
        return _cut(wrapped[1].rsplit("::", 1)[-1], length)
    gemm = _XMMA.match(name)
    if gemm:
        math = " tf32" if "tf32" in name else " ffma" if "ffma" in name else ""
        return f"{gemm[1]} {gemm[2]} {gemm[3]}{math}{' split-K' if '_split_k_' in name else ''}"
    head = name.removeprefix("void ").replace("(anonymous namespace)", "").replace("<unnamed>", "")
    function = re.split(r"[<(]", head, maxsplit=1)[0].strip()
    function = [part for part in function.split("::") if part.strip()][-1].strip() if function.strip(": ") else head
    operations = [word for word in _OPERATION.findall(name) if word != function and word not in _WRAPPERS]
    operation = _DECORATION.sub("", operations[0]) if operations else ""
    return _cut(f"{function} · {operation}" if operation else function, length)


def breakable(short: str) -> Markup:
    """A short name that may break after an underscore."""
    return Markup(escape(short).replace("_", Markup("_<wbr>")))


def _cut(text: str, length: int) -> str:
    """Both ends of a long text: the end of a GEMM's name says whether it is a split-K part."""
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}…{text[-half:]}"


def plain(words: Markup) -> str:
    """A sentence of a page as a terminal shows it."""
    without = html.unescape(re.sub(r"<[^>]+>", "", remove_links(str(words))))
    return re.sub(r"\*\*|`", "", without).replace("\N{NARROW NO-BREAK SPACE}", " ")


def remove_links(markdown: str) -> str:
    """Return Markdown with the words of links in place of the links."""
    return re.sub(r"\[([^\]]*)\]\([^)\s]*(?: \"[^\"]*\")?\)", r"\1", markdown)
