"""Compare what nsys and torch.profiler record of the same scripts, from recordings of `profile`.

python -m tests.bench.two_collectors results/recordings --out kernels.parquet

The recordings are named SCRIPT-COLLECTOR-ROUND, such as gpt-nsys-1 and gpt-torch-1. A kernel is known by its place in
its step. Its time is the median over all steps and rounds of a collector, so that one slow moment of the GPU counts for
neither. What the rounds of one collector differ by shows how much of a difference is none of the collectors.
Printed as JSON, a line for each script: times in ms, differences in percent, shares in points.
"""

import argparse
import json
import re
from pathlib import Path

import pandas as pd

from profiler_job.analysis.recording import store

NSYS, TORCH = "nsys", "torch"
SMALL = 0.005
"""Families with a smaller share of the kernel time are compared as one."""
_CASTS = re.compile(r"\((?:unsigned |signed )?(?:int|long|long long|char|short|bool)\)(?=-?\d)")
_ARGUMENTS = re.compile(r"\([^()]*\)")
_WORDS = re.compile(r"\b(?:void|const|lambda\d*|operator|instance|static|T\d+)\b")
_NO_SCOPE = re.compile(r"<unnamed>|\(anonymous namespace\)")


def simplify_name(name: str) -> str:
    """Return a kernel's name without what both collectors spell differently: arguments, lambdas, casts of numbers, and
    where `const` is."""
    text = _CASTS.sub("", _NO_SCOPE.sub("", name))
    while (shorter := _ARGUMENTS.sub("", text)) != text:
        text = shorter
    text = re.sub(r"\btrue\b", "1", re.sub(r"\bfalse\b", "0", _WORDS.sub("", text)))
    text = re.sub(r"#\d+|(?<=\d)(?:[uU][lL]*|[lL]+)\b", "", text)
    return re.sub(r"[^\w<>,]", "", text)


def read_kernels(folder: Path) -> pd.DataFrame:
    """Read the kernels of the steps of a recording: script, collector, round, step, place, name, family, phase, module
    and ns."""
    script, collector, number = folder.name.rsplit("-", 2)
    kernels = store.load(folder).kernels
    kernels = kernels[(kernels["step"] >= 0) & (kernels["rank"] == 0)].sort_values(["step", "start_ns"])
    place = kernels.groupby("step").cumcount()
    columns = {"name": kernels["kernel_name"], "ns": kernels["end_ns"] - kernels["start_ns"], "place": place}
    columns |= {name: kernels[name] for name in ("step", "family", "phase", "module")}
    about = {"script": script, "collector": collector, "round": int(number)}
    return pd.DataFrame({name: column.to_numpy() for name, column in columns.items()}).assign(**about)


def compare_scripts(rows: pd.DataFrame) -> list[dict]:
    """Compare both collectors for each script."""
    return [{"script": name} | compare_script(mine) for name, mine in rows.groupby("script", sort=False)]


def compare_script(rows: pd.DataFrame) -> dict:
    """Return what the two collectors differ by. rows: of `read_kernels`, of one script."""
    names = {}
    for collector in (NSYS, TORCH):
        mine = rows[rows["collector"] == collector]
        steps = [tuple(step["name"].astype(str)) for _, step in mine.groupby(["round", "step"])]
        names[collector] = [tuple(map(simplify_name, step)) for step in set(steps)]
    sequences = set(names[NSYS]) | set(names[TORCH])
    found = {"kernels": sorted({len(step) for step in sequences}), "sequences": len(sequences)}
    found["rounds"] = int(rows["round"].nunique())
    found["steps"] = int(rows.groupby(["collector", "round"])["step"].nunique().min())
    places = find_medians(rows, [])
    found["total"] = compare_sums(places, [])["all"]
    shares = find_medians(rows, [])
    by_family = compare_sums(places, ["family"])
    is_small = {key: part["share"] < SMALL for key, part in by_family.items()}
    found["families"] = {key: part for key, part in by_family.items() if not is_small[key]}
    found["small_families"] = {key: part for key, part in by_family.items() if is_small[key]}
    for key in ("phase", "module"):
        found[key] = max(abs(part["points"]) for part in compare_sums(shares, [key]).values())
    found["between_rounds"] = {name: compare_rounds(rows[rows["collector"] == name]) for name in (NSYS, TORCH)}
    return found


def find_medians(rows: pd.DataFrame, more: list[str]) -> pd.DataFrame:
    """Find the median time of each kernel, and the family, phase and module that it mostly has."""
    keys = ["collector", *more, "place"]
    grouped = rows.astype({"family": str, "phase": str, "module": str}).groupby(keys, sort=False)
    return grouped.agg(
        ns=("ns", "median"), family=("family", "first"), phase=("phase", "first"), module=("module", "last")
    ).reset_index()


def compare_sums(places: pd.DataFrame, by: list[str], one: str = NSYS, other: str = TORCH, key: str = "collector"):
    """Compare sums of `ns`: by value of the column `by` the ms of one, its share, percent and points of the other."""
    labels = places[by[0]] if by else pd.Series("all", places.index)
    sums = places.groupby([labels, places[key]])["ns"].sum().unstack(fill_value=0.0)
    for name in (one, other):
        if name not in sums:
            sums[name] = 0.0
    whole = {name: sums[name].sum() for name in (one, other)}
    return {
        str(label): {
            "ms": round(row[one] / 1e6, 4),
            "share": round(row[one] / whole[one], 5),
            "percent": round(100 * (row[other] / row[one] - 1), 3) if row[one] else None,
            "points": round(100 * (row[other] / whole[other] - row[one] / whole[one]), 3),
        }
        for label, row in sums.iterrows()
    }


def compare_rounds(rows: pd.DataFrame) -> dict:
    """Compare the last round of a collector with the first: total, and the largest difference of a family."""
    numbers = sorted(rows["round"].unique())
    if len(numbers) < 2:
        return {}
    places = find_medians(rows, ["round"])
    first, last = numbers[0], numbers[-1]
    total = compare_sums(places, [], first, last, "round")["all"]["percent"]
    families = compare_sums(places, ["family"], first, last, "round").values()
    large = [abs(part["percent"]) for part in families if part["share"] >= SMALL and part["percent"] is not None]
    return {"total": total, "family": max(large)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, help="a folder of recordings, or what --out wrote of it")
    parser.add_argument("--out", type=Path, help="keep the kernels in this file")
    args = parser.parse_args()
    if args.recordings.is_file():
        rows = pd.read_parquet(args.recordings)
    else:
        folders = sorted(file.parent for file in args.recordings.glob("*-*-*/manifest.json"))
        rows = pd.concat([read_kernels(folder) for folder in folders], ignore_index=True)
        rows = rows.astype({name: "category" for name in ("name", "family", "phase", "module", "script", "collector")})
    if args.out:
        rows.to_parquet(args.out, compression="zstd")
    for found in compare_scripts(rows):
        print(json.dumps(found))


if __name__ == "__main__":
    main()
