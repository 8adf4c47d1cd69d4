"""Kernels that compute parts of several modules: their name in place of a module, and their time by module.

The name has the modules inside the one around all of them, with percents of the bytes of the results that the kernel's
operations write: GPT/h.3/(fused: ln_2 60% + mlp[0] 30%). What is left is of the module around them. Wherever time is
summed by module, the kernel's time is divided by these percents, in whole nanoseconds that sum to it: of what remains
after whole parts, one each to the largest remainders. Names of older recordings have no percents: parts are equal.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd

from profiler_job.jobs.contract import ranges as vocabulary

BEGIN, END = vocabulary.FUSED.split("{}")
"""How the name of a fused kernel begins and ends."""
RELEVANT, MOST_NAMED = 10, 4
"""Percent from which a module is named in a short name, and how many are."""
_PERCENT = re.compile(r"(.+) (\d{1,3})%")
_LEVEL = re.compile(r"/|\[(?=\d+\])")
_PLACED = re.compile(r"\[(\d+)\]")
_INNER = re.compile(r"\.(?![\d*])")


def divide(total: float, weights: Sequence[int]) -> list[float]:
    """Divide a total by weights into whole numbers that sum to it; a fraction of it goes to the first."""
    num_ns, sum_weights = int(total), sum(weights)
    if not sum_weights:
        weights, sum_weights = [1] * len(weights), len(weights)
    parts = [num_ns * weight // sum_weights for weight in weights]
    by_remainder = sorted(range(len(parts)), key=lambda at: -(num_ns * weights[at] % sum_weights))
    for at in by_remainder[: num_ns - sum(parts)]:
        parts[at] += 1
    return [parts[0] + (total - num_ns), *parts[1:]]


def format_fused(base: str, parts: Mapping[str, int]) -> str:
    """Name a fused kernel. base: path of the module around all of its modules. parts: percents by the names of the
    modules inside it, 0 where they are not known; what is without a name is of the module around them."""
    ordered = sorted(parts.items(), key=lambda part: (-part[1], part[0]))
    names = " + ".join(f"{name} {percent}%" if percent else name for name, percent in ordered)
    return "/".join(filter(None, [base, vocabulary.FUSED.format(names)]))


def parse_fused(module: str) -> tuple[str, dict[str, int]] | None:
    """Return what `format_fused` was given; None for the path of another module."""
    base, begins, names = module.rpartition(BEGIN)
    if not begins or not names.endswith(END):
        return None
    parts: dict[str, int] = {}
    for name in names.removesuffix(END).split(" + "):
        known = _PERCENT.fullmatch(name)
        name, percent = (known[1], int(known[2])) if known else (name, 0)
        parts[name] = parts.get(name, 0) + percent
    return base.removesuffix("/"), parts


def shorten_fused(module: str) -> str:
    """The path with a fused kernel's largest modules alone, without percents: GPT/h.*/(fused: ln_2 + mlp.0); that of
    another module as it is."""
    if (known := parse_fused(module)) is None:
        return module
    base, parts = known
    names = [name for name, percent in parts.items() if percent >= RELEVANT] or list(parts)
    named = sorted(names[:MOST_NAMED])
    more = [f"{len(names) - MOST_NAMED} more"] * (len(names) > MOST_NAMED)
    return format_fused(base, dict.fromkeys([" + ".join([*named, *more])], 0))


def qualify(module: str) -> str:
    """Name a module as PyTorch's `named_modules` does: GPT/transformer.h.*/mlp/0 -> GPT.transformer.h.*.mlp.0. In the
    name of a fused kernel a dot may be either."""
    return _LEVEL.sub(".", module).replace("]", "")


def divide_fused(rows: pd.DataFrame, times: Sequence[str]) -> pd.DataFrame:
    """Divide the times (ns) of fused kernels among their modules: rows of kernels by module, where one of a fused
    kernel becomes one for each of its modules, which has all of its other columns. Adds fused_into, the fused kernel's
    short name; "" for others. A part has the path of the module that the other rows have, if one of them has it."""
    rows = rows.reset_index(drop=True).assign(fused_into="")
    weights = weigh_fused(rows["module"].unique())
    if not weights:
        return rows
    is_fused = rows["module"].isin(weights)
    divided = []
    for row in rows[is_fused].to_dict("records"):
        inside = weights[row["module"]]
        of_times = {time: divide(row[time], list(inside.values())) for time in times}
        name = shorten_fused(row["module"]).rpartition("/")[2]
        for at, module in enumerate(inside):
            part = {time: values[at] for time, values in of_times.items()}
            divided.append(row | part | {"module": module, "fused_into": name})
    made = pd.DataFrame(divided, columns=rows.columns).astype({time: rows[time].dtype for time in times})
    return pd.concat([rows[~is_fused].astype({"module": object}), made], ignore_index=True)


def weigh_fused(modules: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the weights of the modules of each fused kernel among the modules of a table, by their paths."""
    names = [str(module) for module in modules]
    fused = {module: known for module in names if (known := parse_fused(module))}
    paths = {qualify(path): path for module in names for path in _list_outer(module, fused)} if fused else {}
    return {module: _weigh(base, named, paths) for module, (base, named) in fused.items()}


def _list_outer(module: str, fused: Mapping[str, tuple[str, dict[str, int]]]) -> Iterator[str]:
    """List a module and the modules around it; of a fused kernel those around it alone."""
    path = fused[module][0] if module in fused else module
    while path:
        yield path
        path = path.rpartition("/")[0]


def _weigh(base: str, parts: Mapping[str, int], known: Mapping[str, str]) -> dict[str, int]:
    """Return the weights of the modules of a fused kernel, by their paths, the largest first."""
    weights: dict[str, int] = {}
    rest = 100 - sum(parts.values())
    for name, percent in parts.items():
        path = _find_path("/".join(filter(None, [base, _spell(name)])), known)
        weights[path] = weights.get(path, 0) + (percent if rest < 100 else 1)
    if 0 < rest < 100:
        weights[base] = weights.get(base, 0) + rest
    return weights


def _spell(name: str) -> str:
    """Spell a name in a fused kernel as a path; a level that has a dot inside is not known as one."""
    return _INNER.sub("/", _PLACED.sub(r"/\1", name))


def _find_path(path: str, known: Mapping[str, str]) -> str:
    """Return the path as it is known, or as the modules around it are."""
    outer, _, name = path.rpartition("/")
    return known.get(qualify(path)) or "/".join(filter(None, [outer and _find_path(outer, known), name]))
