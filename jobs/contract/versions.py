"""Facts of a machine that may change times. Runs that differ in them are a mix: it is refused, or allowed and then
shown on every page. Jobs, the merge of shards, and pages compare the same facts."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypedDict

from profiler_job.jobs.contract.words import format_count

COMPARED = ("gpu_name", "driver", "cuda", "torch", "nsys", "commit")
"""Facts of a machine, as in the record of a run. Left out are Python, which changes no kernel and often has a new
patch release, and the bytes of GPU memory, which settings change on GPUs of one name. Several machines with the same
facts are no mix."""

Machine = Mapping[str, object]


class Difference(TypedDict):
    """A fact `here`, and the number of `runs` by their different value."""

    here: str
    runs: dict[str, int]


def read_fact(machine: Machine, name: str) -> str:
    """Return a fact of a machine; "" if it is unknown, such as the commit without git."""
    return str(machine.get(name) or "")


def find_mixed_facts(machines: Iterable[Machine], names: Iterable[str] = COMPARED) -> dict[str, dict[str, int]]:
    """Return the facts that differ between runs, each with the number of runs by value, most first.

    machines: one machine for each run. A missing nsys does not differ: it was not used.
    """
    machines = list(machines)
    counted = {
        name: Counter(read_fact(machine, name) for machine in machines if name != "nsys" or machine.get(name))
        for name in names
    }
    return {name: dict(counts.most_common()) for name, counts in counted.items() if len(counts) > 1}


def compare_machines(machines: Iterable[Machine], here: Machine) -> dict[str, Difference]:
    """Return the compared facts in which machines of runs differ from the machine `here`: the value `here`, and the
    number of differing `runs` by value, most first."""
    machines = list(machines)
    by_name: dict[str, Difference] = {}
    for name in COMPARED:
        mine = read_fact(here, name)
        runs = Counter(theirs for machine in machines if (theirs := read_fact(machine, name)) != mine)
        if runs:
            by_name[name] = {"here": mine, "runs": dict(runs.most_common())}
    return by_name


def format_differences(different: Mapping[str, Difference]) -> str:
    """Format the result of `compare_machines`: `torch 2.10 (12 runs), here 2.11; commit abc (3 runs), here unknown`."""
    return "; ".join(
        f"{name} {format_counts(difference['runs'])}, here {difference['here'] or 'unknown'}"
        for name, difference in different.items()
    )


def format_counts(runs: Mapping[str, int]) -> str:
    """Format numbers of runs by value: `2.11 (12 runs), unknown (1 run)`."""
    return ", ".join(f"{name or 'unknown'} ({format_count(number, 'run')})" for name, number in runs.items())
