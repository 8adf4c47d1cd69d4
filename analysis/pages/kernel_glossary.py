"""Every kernel family and every kernel name seen: what it computes, how it is classified, where it appears."""

import pandas as pd

from analysis.answer import Answer, Column, Table, assemble
from analysis.metrics import kernel_time
from analysis.reference import gemm_names, kernel_families

SLUG = "kernels"
TITLE = "Kernels"


def answer(kernels: pd.DataFrame) -> Answer:
    """One table per family that was seen, kernels by falling highest share of a step; `explanation` is that of the rule
    that caught the name.

    Also the rules with the kernel time that each caught, and the share of all kernel time that no rule caught.
    """
    totals = kernel_time.by_kernel(kernel_time.kernel_totals(kernels), ["run_id"])
    names = totals.groupby(["family", "kernel_name"], sort=False).agg(
        num_runs=("run_id", "nunique"), high=("share", "max"), time_ns=("time_ns", "sum"), modules=("modules", _most)
    )
    names = names.reset_index().sort_values(["high", "kernel_name"], ascending=[False, True])
    found = [kernel_families.classify(name) for name in names["kernel_name"]]
    names["rule"] = [one.rule for one in found]
    names["part"] = [one.part for one in found]
    names["name_says"] = [_name_says(name) for name in names["kernel_name"]]
    names["explanation"] = [_explanation(one) for one in found]
    families = []
    tables = []
    for key, family in kernel_families.FAMILIES.items():
        of_family = names[names["family"] == key]
        if not len(of_family):
            continue
        families.append(
            {"key": key, "label": family.label, "explanation": family.explanation, "num_names": len(of_family)}
        )
        said = (Column("name_says", "what its name says", "prose"),) if key == "gemm" else ()
        tables.append(
            Table(
                f"kernels-{key}",
                f"{family.label} kernels seen, by their highest share of a step",
                (
                    Column("kernel_name", "kernel", "kernel_entry"),
                    Column("explanation", "what it computes", "prose"),
                    *said,
                    Column("modules", "launched by", "modules"),
                    Column("num_runs", "runs", "count"),
                    Column("high", "highest share", "share", bar=True),
                ),
                of_family.reset_index(drop=True),
            )
        )
    whole = names["time_ns"].sum()
    rules = names.groupby(["family", "rule"], sort=False).agg(
        num_names=("kernel_name", "size"), time_ns=("time_ns", "sum")
    )
    rules = rules.reset_index().assign(share=lambda rows: rows["time_ns"] / whole)
    rules = rules.sort_values(["share", "rule"], ascending=[False, True], ignore_index=True)
    tables.append(
        Table(
            "rules",
            "Rules by the kernel time that they caught, all runs together",
            (
                Column("family", "family", "family"),
                Column("rule", "rule"),
                Column("num_names", "kernel names", "count"),
                Column("share", "of kernel time", "share", bar=True),
            ),
            rules,
        )
    )
    unclassified = rules.loc[rules["family"] == kernel_families.OTHER, "share"].sum()
    facts = {"families": families, "num_names": len(names), "unclassified": float(unclassified)}
    return assemble(facts, [], tables, [])


def _name_says(name: str) -> str:
    """What a matrix product's name says of it; fields that no documentation backs end in a question mark."""
    read = gemm_names.parse(name)
    if read is None:
        return ""
    words = {
        "math_path": gemm_names.MATH_PATHS.get(read.math_path or "", ""),
        "layout": f"layout {read.layout}" if read.layout else "",
        "tile": f"tile {'×'.join(str(side) for side in read.tile if side)}" if read.tile else "",
        "stages": f"{read.stages} stages" if read.stages else "",
        "split_k": "split along K" if read.split_k else "",
    }
    said = [word + ("?" if field in read.inferred else "") for field, word in words.items() if word]
    return ", ".join([read.library, *said])


def _most(modules: pd.Series) -> str:
    """The module lists of a kernel over all runs as one, in the order in which they first appear."""
    return ", ".join(dict.fromkeys(name for one in modules for name in one.split(", ") if name))


def _explanation(found: kernel_families.Classification) -> str:
    rule = kernel_families.rule(found)
    return rule.explanation if rule else "no rule knows this name"
