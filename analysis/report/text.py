"""Numbers and names to text. Every name comes from a profile and is untrusted: it leaves here as Markup that is inert in Markdown and in HTML."""

import hashlib
import html
import math
import re

from markupsafe import Markup

MINUS, TIMES, THIN = "\u2212", "\u00d7", "\u202f"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufdd0\ufffe\uffff\ud800-\udfff]")
_MARKDOWN = re.compile(r"[^0-9A-Za-z .,;:/·…×−–%÷\u0080-\U0010ffff]")
_NOT_FILE = re.compile(r"[^0-9A-Za-z._-]+")


class Unformatted(TypeError):
    """A template prints a value without saying how."""


def escape(text: object) -> Markup:
    """HTML for one line of untrusted text: control characters replaced, line breaks shown as a space."""
    clean = _CONTROL.sub("\ufffd", str(text).replace("\r", " ").replace("\n", " ").replace("\t", " "))
    return Markup(html.escape(clean, quote=True))


def inline(text: object) -> Markup:
    """Untrusted text inside a Markdown paragraph: every character that Markdown or HTML might read is an entity."""
    clean = _CONTROL.sub("\ufffd", str(text).replace("\r", " ").replace("\n", " ").replace("\t", " "))
    return Markup(_MARKDOWN.sub(lambda m: f"&#{ord(m[0])};", clean))


def finalize(value: object) -> object:
    """Jinja2 hook: refuses whatever no filter has formatted, numbers above all."""
    if isinstance(value, Markup):
        return value
    raise Unformatted(f"{value!r} needs a filter (ms, percent, count, text ...)")


# ---------------------------------------------------------------- numbers


def number(value: float, decimals: int) -> str:
    """Fixed decimals, thousands separated, a real minus sign."""
    return f"{value:,.{decimals}f}".replace("-", MINUS)


def decimals_for(values) -> int:
    """Decimals that leave three digits to the smallest value, but at most three: one choice for a whole column."""
    magnitudes = [abs(v) for v in values if v and math.isfinite(v)]
    if not magnitudes:
        return 0
    return min(3, max(0, 2 - math.floor(math.log10(min(magnitudes)))))


def ms(nanoseconds: float) -> Markup:
    value = nanoseconds / 1e6
    return Markup(f"{number(value, decimals_for([value]))}{THIN}ms")


def percent(fraction: float, decimals: int = 1) -> Markup:
    smallest = 10.0 ** -(decimals + 2)
    if 0 < fraction < smallest / 2:
        return Markup(f"&lt;{number(100 * smallest, decimals)}%")
    return Markup(f"{number(100 * fraction, decimals)}%")


def points(fraction: float) -> Markup:
    sign = "+" if fraction > 0 else ""
    return Markup(f"{sign}{number(100 * fraction, 1)} points")


def points_lost(fraction: float) -> Markup:
    """The size of a change, for a sentence that says its direction."""
    return Markup(f"{number(100 * abs(fraction), 1)} points")


def ratio(value: float) -> Markup:
    return Markup(f"{number(value, decimals_for([value]))}{TIMES}")


def count(value: float) -> Markup:
    return Markup(number(value, 0) if float(value).is_integer() else number(value, 1))


def span(pair: tuple[int, int]) -> Markup:
    """A number, or a range of two where they differ."""
    low, high = pair
    return count(low) if low == high else Markup(f"{count(low)}\u2013{count(high)}")


def ratio_span(pair: tuple[float, float]) -> Markup:
    return _span(pair, ratio)


def percent_span(pair: tuple[float, float], decimals: int = 1) -> Markup:
    return _span(pair, lambda fraction: percent(fraction, decimals))


def _span(pair: tuple[float, float], form) -> Markup:
    """`low to high`, or one number where both read the same."""
    low, high = map(form, pair)
    return low if low == high else low + Markup(" to ") + high


def gib(size: float) -> Markup:
    value = size / 2**30
    return Markup(f"{number(value, decimals_for([value]))}{THIN}GiB")


def mib(size: float) -> Markup:
    return Markup(number(size / 2**20, 2))


def parameters(value: float) -> Markup:
    return Markup(f"{value / 1e9:.2f}{THIN}billion" if value >= 1e9 else f"{value / 1e6:.0f}{THIN}million")


def listing(names) -> Markup:
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


_WRAPPED = re.compile(r"^(?:void )?(?:cutlass::)?(?:device_kernel|Kernel2?)<\s*(?:\(?[\w:]*\)?)?([A-Za-z_][\w:]*)")
_FUNCTOR = re.compile(r"(\w*Functor|\w+_kernel_cuda|\w+_kernel_impl|\w+Ops|CompareEq\w*|\w+_backward_cuda)\b")


def short_name(name: str, length: int = 64) -> str:
    """What a reader calls a kernel: its function without namespaces and template arguments, and the functor it applies. Not unique."""
    wrapped = _WRAPPED.match(name)
    if wrapped:
        return _cut(wrapped[1].rsplit("::", 1)[-1], length)
    head = name.removeprefix("void ").replace("(anonymous namespace)", "").replace("<unnamed>", "")
    function = re.split(r"[<(]", head, maxsplit=1)[0].strip()
    function = [part for part in function.split("::") if part.strip()][-1].strip() if function.strip(": ") else head
    functors = [
        f for f in _FUNCTOR.findall(name[len(function) :]) if f not in function and not f.startswith("gpu_kernel_impl")
    ]
    return _cut(f"{function} · {functors[-1]}" if functors else function, length)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
