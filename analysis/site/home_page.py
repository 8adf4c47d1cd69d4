"""The home page with its cases: one is part of the page, each is a file that a script reads."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from markupsafe import Markup

from profiler_job.analysis.metrics import run_grid
from profiler_job.analysis.pages import home, home_cases, run_page, unmeasured_cases
from profiler_job.analysis.pages.home_cases import HomeCase
from profiler_job.analysis.pages.other_cases import fill_cards
from profiler_job.analysis.pages.topics import ANATOMY
from profiler_job.analysis.recording import store
from profiler_job.analysis.render.tables import address
from profiler_job.analysis.render.text import file_name
from profiler_job.analysis.site.combine import choose_manifest, select_runs
from profiler_job.analysis.site.fragments import to_script
from profiler_job.analysis.site.page_context import NOTHING, RunPages, describe_version, identify_runs, join_versions
from profiler_job.analysis.site.run_pages import Screens
from profiler_job.analysis.site.site_writer import Site
from profiler_job.analysis.site.state_answers import StateAnswers
from profiler_job.analysis.site.topic_pages import write_topic
from profiler_job.jobs.contract.modes import MODES
from profiler_job.jobs.contract.studies import AGAIN, LOSSES

FIELDS = {"model": "Model", "context": "Context", "batch": "Batch", "gpu": "GPU"}
"""The choices by their names in the address of the page, in the order of `home_cases.KEY`."""
FOLDER = "report/cases"


def find_opening_runs(rec: store.Recording, studies: Mapping[str, store.Recording]) -> list[str]:
    """Find the ids of the runs of the step that home opens on."""
    cases = home_cases.list_cases(list_recordings(rec, studies))
    return [run_id for _, run_id in home_cases.choose_case(cases).runs.values()] if cases else []


def list_recordings(rec: store.Recording, studies: Mapping[str, store.Recording]) -> list[store.Recording]:
    """List the recordings whose steps home may show."""
    return [rec, *(other for study, other in studies.items() if study not in (AGAIN, LOSSES))]


def write_home(
    site: Site,
    rec: store.Recording,
    studies: Mapping[str, store.Recording],
    run_pages: RunPages,
    gains: pd.DataFrame | None,
    answered: StateAnswers,
    members: Sequence[Mapping[str, Any]],
    known: Screens,
    **pages: Any,
) -> None:
    """Write the home page, a file of each case, and the page on the anatomy of a step, which shows the first case.
    run_pages: the pages of all runs; gains: as in `prediction.measured`; answered: the answers to the questions of
    ANATOMY for each state; members: these questions, as `list_members` gives them; known: first screens; pages: what
    else the template needs."""
    recordings = list_recordings(rec, studies)
    cases = home_cases.list_cases(recordings)
    screens = describe_screens(recordings, cases, gains, known)
    links = [_list_links(other, run_pages) for other in recordings]
    names = [state for state in home_cases.STATES if any(state in case.runs for case in cases)]
    names = names or list(dict.fromkeys(state for case in cases for state in case.runs))
    recorded = home.answer(rec.runs, rec.manifest)
    pages["is_training"] = any(screen["run"]["mode"] == MODES[-1] for screen in screens.values())
    if cases:
        first = home_cases.choose_case(cases)
        for case in cases:
            states = _collect_states(case, cases, names, screens, links)
            shown = _choose_state(case, names)
            if case is first:
                pages |= {"states": states, "shown": shown}
            html = site.render_part("index.md", "home_states.html", recorded, states=states, shown=shown)
            site.write_asset(f"{FOLDER}/{_name_case(case)}.js", to_script("showCase", at=case.at, html=html))
        models = unmeasured_cases.list_models(cases, pages["is_training"])
        pages["picker"] = _describe_picker(cases, first, models)
        _write_unmeasured(site, cases, models, screens, pages["is_training"])
        pages["versions"] = name_recordings_of(first, recordings)
        site = replace(site, recording=join_versions(pages["versions"]))
    pages = {"picker": None, "states": [], "shown": "", "versions": []} | pages
    site.write("index.md", "home.md", recorded, **pages)
    words = pages["picker"]["words"] if pages["picker"] else ""
    extra = {"shown": pages["shown"], "words": words, "compiled": None}
    if home_cases.COMPILED in names:
        extra["compiled"] = {"note": answered.note, "place": names.index(home_cases.COMPILED) + 1}
    members = answered.add_to(members, names)
    states = [state | {"link": _lead_up(state["link"])} for state in pages["states"]]
    write_topic(site, ANATOMY, "anatomy.md", members, names, states=states, **extra)


def name_recordings_of(case: HomeCase, recordings: Sequence[store.Recording]) -> list[dict[str, str]]:
    """Name the recordings whose runs a case shows, each as `describe_version` does."""
    ids: dict[int, set[str]] = {}
    for number, run_id in case.runs.values():
        ids.setdefault(number, set()).add(run_id)
    of_runs = [choose_manifest(recordings[number].manifest, run_ids) for number, run_ids in ids.items()]
    return [describe_version(manifest) for manifest in of_runs]


def describe_screens(
    recordings: Sequence[store.Recording], cases: Sequence[HomeCase], gains: pd.DataFrame | None, known: Screens
) -> dict[tuple[int, str], dict[str, Any]]:
    """The first screen of each run that cases have, by the index of its recording and its id."""
    screens: dict[tuple[int, str], dict[str, Any]] = {}
    for number, run_ids in home_cases.iterate_chosen(cases):
        chosen_runs = [run for run in identify_runs(recordings[number].runs) if run[0] in run_ids]
        screens |= {(number, run[0]): known[run] for run in chosen_runs if run in known}
        chosen = select_runs(recordings[number], sorted(run[0] for run in chosen_runs if run not in known))
        tables = {name: getattr(chosen, name) for name in run_page.TABLES}
        nothing = pd.DataFrame(columns=["run_id"])
        for run_id, answer in run_page.answers(**tables, checks=nothing, measured=gains):
            screens[number, run_id] = answer.facts["screen"]
    return screens


def _list_links(rec: store.Recording, run_pages: RunPages) -> dict[str, str]:
    pages = run_grid.page_by_id([rec], run_pages)
    return {run_id: address(pages[run_id], "") if pages[run_id] else "" for run_id, _ in identify_runs(rec.runs)}


def _lead_up(link: str) -> Markup:
    """The link of a page in `report` that is `link` on the home page."""
    return Markup(link and f"../{link}")


def _collect_states(
    case: HomeCase,
    cases: Sequence[HomeCase],
    names: Sequence[str],
    screens: Mapping[tuple[int, str], Mapping[str, Any]],
    links: Sequence[Mapping[str, str]],
) -> list[dict[str, Any]]:
    states = []
    for name in names:
        place = case.runs.get(name)
        screen = fill_cards(case, name, cases, screens) if place else None
        known = screens[case.timed[name]] if name in case.timed else screen
        step_ns = known["numbers"]["step_ns"] if known else None
        link = links[place[0]].get(place[1], "") if place else ""
        state = {"label": name, "step_ns": step_ns, "screen": screen, "link": Markup(link)}
        states.append(state | {"others": case.others.get(name)})
    return states


def _choose_state(case: HomeCase, names: Sequence[str]) -> str:
    """BF16, as people train, if it is recorded, or else the first state that is."""
    return home_cases.BF16 if home_cases.BF16 in case.runs else next(name for name in names if name in case.runs)


def _name_case(case: HomeCase) -> str:
    model, *others = case.at
    return file_name("-".join([model.partition(" (")[0], *others]).replace(",", ""))


def _describe_picker(cases: Sequence[HomeCase], first: HomeCase, models: Mapping[str, float]) -> dict[str, Any]:
    """models: as `unmeasured_cases.list_models` gives them."""
    measured = {case.at[0] for case in cases}
    fields = []
    for i, (name, label) in enumerate(FIELDS.items()):
        values = list(models) if i == 0 else list(dict.fromkeys(case.at[i] for case in cases))
        if name in ("context", "batch"):
            values.sort(key=lambda value: int(value.replace(",", "")))
        predicted = {value for value in values if i == 0 and value not in measured}
        fields.append({"name": name, "label": label, "values": values, "chosen": first.at[i], "predicted": predicted})
    of_script = [[*case.at, f"{FOLDER}/{_name_case(case)}.js"] for case in cases]
    model, context, batch, gpu = first.at
    words = f"{model}, {context} tokens, batch {batch}, {gpu}"
    return {"fields": fields, "cases": json.dumps(of_script, separators=(",", ":")), "words": words}


def _write_unmeasured(
    site: Site,
    cases: Sequence[HomeCase],
    models: Mapping[str, float],
    screens: Mapping[tuple[int, str], Mapping[str, Any]],
    is_training: bool,
) -> None:
    """Write a script with all that can be chosen and was not measured: by its values, the place of the nearest case in
    the picker's list, and a note on it, as HTML."""
    places = {case.at: place for place, case in enumerate(cases)}
    notes = {}
    for case in unmeasured_cases.list_unmeasured(cases, models, is_training):
        around = [
            {"model": side.at[0], "numbers": screens[side.runs[home_cases.BF16]]["numbers"]}
            for side in case.around
            if home_cases.BF16 in side.runs
        ]
        html = site.render_part("index.md", "home_unmeasured.html", NOTHING, one=case, around=around)
        notes["|".join(case.at)] = [places[case.nearest.at], html]
    site.write_asset(f"{FOLDER}/unmeasured.js", to_script("showUnmeasured", **notes))
