"""What torch.compile did in a measured script: from its results to a recording, its page, and what is published."""

import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.answers.script_findings import format_findings
from profiler_job.analysis.capture.graph_breaks import Break
from profiler_job.analysis.insight.broken_lines import list_recorded, measure_lines
from profiler_job.analysis.insight.recorded_compiling import TABLES_OF_SCRIPTS, describe_compiling, list_notes
from profiler_job.analysis.insight.run_advice import is_compiled
from profiler_job.analysis.insight.wait_lines import fit_to_compiled
from profiler_job.analysis.pages.script_answers import answer_script
from profiler_job.analysis.pages.script_compiling import build_breaks_table
from profiler_job.analysis.recording import store
from profiler_job.analysis.recording.ingest import ResultsError, ingest
from profiler_job.analysis.reference.kernel_families import FAMILIES
from profiler_job.analysis.reference.python_libraries import DO, DO_SYNC, OWN_OF_MODULE, leave_out_compile
from profiler_job.analysis.show.show_formats import TITLES
from profiler_job.analysis.site.question_pages import write_script_page
from profiler_job.analysis.site.site_writer import Site
from profiler_job.jobs.contract.changes import COMPILE, LABELS, TRIABLE, WHOLE_GRAPHS
from profiler_job.jobs.contract.compiling import Compiling, GraphBreak, Recompilation
from profiler_job.jobs.executor.script_compiling import build_compiling
from tests.capture.test_graph_breaks import make_capture
from tests.insight.test_one_meaning import read_words
from tests.insight.test_recorded_waits import RUN, write_record
from tests.page_words import read_page

NOTED = {"rank": 0, "graphs": 2, "late_graphs": 1, "cached_graphs": 0, "compiling_s": 41.5, "compiled_autograd": ""}
AGAIN = {"reason": "tensor 'x' size mismatch at index 1. expected 512, actual 640", "function": "forward", "line": 12}
NOTED |= {"recompilations": [], "graphs_errors": ["skip_code: ImportError: not in /home/ada/torch/eval_frame.py"]}
BROKEN = {"reason": "Failed to trace builtin operator: Dynamo does not know `print`", "function": "tokenize"}


@pytest.fixture
def results(tmp_path):
    """A compiled script with two captured steps, each with a break: 0 and 500 ns long. Without a profiler, too, the GPU
    is idle for most of a step."""
    run = tmp_path / "results" / RUN
    run.mkdir(parents=True)
    make_capture(run)
    (run / "a.sqlite").rename(run / "profile.sqlite")
    steps = [{"step": step, "phase": "step", "wall_ns": 1000} for step in range(2)]
    (run / "timings.json").write_text(json.dumps({"steps": steps, "memory": []}))
    noted = NOTED | {"graph_breaks": [BROKEN | {"file": f"{tmp_path}/train.py", "line": 8, "graphs": []}]}
    again = AGAIN | {"file": f"{tmp_path}/model.py", "gave_up": False}
    noted |= {"recompilations": [again, again, AGAIN | {"file": "", "function": "score", "gave_up": True}]}
    (run / "compiling.json").write_text(json.dumps({"ranks": [build_compiling(noted, tmp_path).model_dump()]}))
    write_record(run, compiled="on")
    return run.parent


def test_the_page_has_each_module_with_its_part_of_fused_kernels(results, tmp_path):
    make_capture(results / RUN, parts="h.{}/norm=75|head=25")
    (results / RUN / "a.sqlite").rename(results / RUN / "profile.sqlite")
    ingest(results, tmp_path / "recording", more_tables=TABLES_OF_SCRIPTS)
    answer, page = write_page(store.load(tmp_path / "recording"), tmp_path)
    tree = answer.tables["tree"].rows.set_index("module")
    assert tree["total_ns"].to_dict() == {
        "GPT": 60,
        "GPT/h.*": 45,
        "GPT/h.*/norm": 45,
        "GPT/head": 15,
        "GPT/(fused: h.*.norm + head)": 60,
        "GPT (compiled)": 20,
    }
    assert answer.claims["module"].rows["module"].tolist() == ["norms"]
    assert "names those with a tenth or more. Their time is in the lines of these modules, too" in page


@pytest.fixture
def recording(results, tmp_path):
    ingest(results, tmp_path / "recording", more_tables=TABLES_OF_SCRIPTS)
    return store.load(tmp_path / "recording")


def write_page(recording, folder):
    """Write the page of the script: its answer, and the words on it."""
    labels = {key: family.label for key, family in FAMILIES.items()}
    answer = write_script_page(Site(folder, (), labels, ("size", "context_length")), recording)
    return answer, read_words(read_page(folder / "index.md"))


def test_it_is_recorded_with_what_the_breaks_of_a_step_cost(recording):
    notes = recording.compile_notes.drop(columns=["run_id", "rank"]).astype(str).values.tolist()
    costs = ["1", "1", "250", "-1", "-1", "-1"]
    assert notes[0] == ["graph break", "train.py:8", "tokenize", BROKEN["reason"], *costs]
    again = ["compiled again", "model.py:12", "forward", AGAIN["reason"], *["-1"] * 6]
    assert notes[1:4] == [again, again, ["given up", "", "score", AGAIN["reason"], *["-1"] * 6]]
    assert notes[4] == ["modules not known", "", "", "skip_code: ImportError: not in eval_frame.py", *["-1"] * 6]
    assert dict(zip(recording.figures["figure"].astype(str), recording.figures["value"])) == {
        "compile_graphs": 2,
        "compile_late_graphs": 1,
        "compile_cached_graphs": 0,
        "compile_ns": 41.5e9,
        "compile_forward_breaks": 1,
        "compile_forward_kernels": 1,
        "compile_forward_idle_ns": 250,
    }


def test_the_page_of_the_script_says_it(recording, tmp_path):
    answer, page = write_page(recording, tmp_path)
    assert not [line for line in answer.facts["compiling"] if line not in page]
    made, late, again, given_up, _, breaks, unknown = answer.facts["compiling"]
    assert "forward (model.py:12) again 2 times" in again and AGAIN["reason"] in again
    assert "score too often" in given_up and AGAIN["reason"] in given_up
    assert "2 graphs" in made and "41.5 s" in made
    assert late.startswith("Of these, 1 was made in measured steps")
    assert "1 graph break." in breaks and "250 ns" in breaks and "skip_code" in unknown
    assert page.index("## torch.compile") < page.index("## What limits a step") < page.index("## By module")
    assert "train.py:8" in page and BROKEN["reason"].split(":")[0] in page


def test_the_command_to_measure_names_the_first_change_that_tune_can_make(recording, tmp_path):
    """A fused loss was the first card, and "this change" was another."""
    _, page = write_page(recording, tmp_path)
    cards = answer_script(recording).of_run.facts["screen"]["cards"]
    [card, *_] = [card for card in cards if {*card["changes"]} <= {*TRIABLE}]
    assert f"{card['actions'][0]}, and measure it" in page and f"tune --changes {card['changes'][0]} " in page


def test_the_terminal_says_what_each_line_costs(recording):
    printed = " ".join(format_findings(answer_script(recording), 80).split())
    assert "torch.compile made 2 graphs in 41.5 s." in printed and "The modules of some kernels" in printed
    cost = "1 time a step, GPU idle for 250 ns in forward, 1 kernel in no graph."
    assert f"Graph break at train.py:8: {cost}" in printed


def test_the_break_that_holds_the_waiting_is_the_first_advice_and_bounded_by_its_table(recording, tmp_path):
    answers = answer_script(recording)
    first = next(entry for entry in answers.of_run.facts["first"] if not entry["reason"])
    shown = answers.of_script.tables["graph_breaks"].rows.iloc[0]
    assert first["changes"] == (WHOLE_GRAPHS,) and first["where"] == "train.py:8 tokenize"
    assert 0 < first["time_ns"] <= first["ceiling_ns"] <= shown["forward_idle_ns"] == 250
    assert BROKEN["reason"] in first["do"] and first["fits_limit"]
    (card, *_) = answers.of_run.facts["screen"]["cards"]
    assert card["changes"] == (WHOLE_GRAPHS,) and card["where"] == first["where"] and BROKEN["reason"] in card["do"]
    printed = " ".join(format_findings(answers, 80).split())
    assert f"1. {LABELS[WHOLE_GRAPHS]} (train.py:8 tokenize): could save up to" in printed
    assert printed.index("Graph break at train.py:8") < printed.index(TITLES["modules"])
    _, page = write_page(recording, tmp_path)
    assert page.index(BROKEN["reason"].split(":")[0]) < page.index("## torch.compile")


def test_a_break_saves_no_more_than_the_gpu_waits_without_a_profiler(results, tmp_path):
    steps = [{"step": step, "phase": "step", "wall_ns": 150} for step in range(2)]  # of which kernels run 80
    (results / RUN / "timings.json").write_text(json.dumps({"steps": steps, "memory": []}))
    ingest(results, tmp_path / "recording", more_tables=TABLES_OF_SCRIPTS)
    first = answer_script(store.load(tmp_path / "recording")).of_run.facts["first"]
    (found,) = (entry for entry in first if entry["changes"] == (WHOLE_GRAPHS,))
    assert 0 < found["time_ns"] <= found["ceiling_ns"] <= 70


def test_nobody_advises_to_compile_what_is_compiled(recording):
    facts = answer_script(recording).of_run.facts
    advised = [entry for entry in facts["first"] if not entry["reason"]]
    assert advised and not [entry["do"] for entry in advised if "or use torch.compile" in entry["do"]]
    assert not {COMPILE} & {name for entry in advised for name in entry["changes"]}
    assert is_compiled({"compile": "off"}, {"compile_graphs": 2.0}), "block by block"
    assert is_compiled({"compile": "default"}, {}) and not is_compiled({"compile": "off"}, {"compile_graphs": 0.0})
    engine = "torch.compile or CUDA graphs launch less in backward (60% of it)"
    rows = pd.DataFrame({"do": [engine, DO[OWN_OF_MODULE], DO_SYNC]})
    assert fit_to_compiled(rows, False)["do"].tolist() == rows["do"].tolist()
    backward, own, sync = fit_to_compiled(rows, True)["do"]
    assert backward == "CUDA graphs launch less in backward (60% of it)" and sync == DO_SYNC
    assert "torch.compile" not in own and own
    assert not [do for do in map(leave_out_compile, DO.values()) if "torch.compile or" in do]


def test_graphs_made_in_measured_steps_are_of_those_made_not_of_those_from_the_cache():
    scalars = {"compile_graphs": 4.0, "compile_late_graphs": 1.0, "compile_cached_graphs": 3.0}
    made, late, cached = describe_compiling(pd.DataFrame(list_notes(Compiling(), []), columns=NOTE), scalars)
    assert "4 graphs" in made and late.startswith("Of these, 1 was") and "3 graphs came from" in cached


def test_a_script_with_another_backend_has_no_graph_of_inductor_though_it_compiles():
    again = Compiling(recompilations=[Recompilation(reason="a", where="model.py:12", function="forward")])
    first, *_ = describe_compiling(pd.DataFrame(list_notes(again, [])), {"compile_graphs": 0.0})
    assert first == "torch.compile made no graph with Inductor."


def test_other_ranks_compile_the_same_again():
    again = Recompilation(reason="a", where="model.py:12", function="forward")
    notes = pd.DataFrame(
        [note for rank in (0, 1) for note in list_notes(Compiling(rank=rank, recompilations=[again]), [])]
    )
    said = describe_compiling(notes, {"compile_graphs": 4.0})
    assert [line for line in said if "again in measured steps" in line and "times" not in line]


NOTE = ["rank", "kind", "where", "function", "reason"]
LINES = GraphBreak(reason="a", graphs=[0, 3]), GraphBreak(reason="b"), GraphBreak(reason="c", graphs=[1])


def make_break(graph, phase="forward", step=0, idle_ns=10):
    return Break(1, step, phase, "GPT (compiled)", graph, 2, idle_ns)


def test_each_line_costs_what_is_idle_at_the_graphs_that_end_there():
    """In two steps, with one of them twice in forward of the first."""
    breaks = [make_break(0), make_break(0, idle_ns=30), make_break(0, step=1), make_break(1), make_break(1, step=1)]
    breaks += [make_break(3, "backward", step, 8) for step in range(2)] + [make_break(-1)]
    first, second, third = measure_lines(LINES, breaks)
    assert first == {
        "forward_breaks": 2,
        "forward_kernels": 3,
        "forward_idle_ns": 25,
        "backward_breaks": 1,
        "backward_kernels": 2,
        "backward_idle_ns": 8,
    }
    assert second["forward_idle_ns"] == 5 and second["backward_breaks"] == 0, "the only line that ends no graph"
    assert third["forward_idle_ns"] == 10


@pytest.mark.parametrize(
    ("lines", "graphs"),
    [
        (LINES, []),
        (LINES, [-1]),  # calls are not known
        ((LINES[1], LINES[1]), [-1]),  # either
    ],
)
def test_what_a_line_costs_is_not_known_where_no_graph_says_it(lines, graphs):
    assert measure_lines(lines, [make_break(graph) for graph in graphs]) == [{}] * len(lines)
    assert measure_lines(LINES[:2], [make_break(0)])[1]["forward_breaks"] == 0


def test_lines_are_shown_once_with_the_most_expensive_first():
    notes = list_notes(Compiling(breaks=list(LINES)), [make_break(1), make_break(0, idle_ns=2)])
    other = list_notes(Compiling(rank=1, breaks=list(LINES)), [make_break(0, idle_ns=4)])
    shown = build_breaks_table(pd.DataFrame([*notes, *other])).rows
    assert shown["reason"].tolist() == ["c", "a", "b"]
    assert shown["forward_idle_ns"].tolist() == [5, 3, 0] and shown["backward_idle_ns"].isna().all()


def test_what_all_lines_cost_is_known_where_that_of_each_is_not():
    notes = pd.DataFrame(list_notes(Compiling(breaks=[LINES[1], LINES[1]]), [make_break(-1)]))
    (row,) = list_recorded(notes, {"compile_forward_idle_ns": 10.0, "compile_forward_kernels": 2.0}).to_dict("records")
    assert (row["where"], row["reason"], row["forward_idle_ns"], row["kernels"]) == ("", "", 10, 2)
    assert not len(list_recorded(notes, {}))


def test_a_script_that_compiles_nothing_has_no_such_block(results, tmp_path):
    (results / RUN / "compiling.json").unlink()
    ingest(results, tmp_path / "recording", more_tables=TABLES_OF_SCRIPTS)
    recording = store.load(tmp_path / "recording")
    assert not len(recording.compile_notes) and not len(recording.figures)
    answer, page = write_page(recording, tmp_path)
    assert not answer.facts["compiling"] and "## torch.compile" not in page


@pytest.mark.parametrize("options", [(), ("--private",)])
def test_publishing_shows_reasons_first_and_private_leaves_them_out(results, tmp_path, options):
    arguments = ["publish-data", str(results), "mine", "--data", str(tmp_path / "data"), "--yes", *options]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    for shown in (BROKEN["reason"], "train.py:8 tokenize"):
        assert (shown in done.output) == (not options)
    (folder,) = (tmp_path / "data").glob("*/mine")
    assert len(store.load(folder).compile_notes) == (0 if options else 5)
    assert (folder / "compile_notes.parquet").exists() == (not options)


def test_a_file_of_another_version_says_what_is_wrong(results, tmp_path):
    (results / RUN / "compiling.json").write_text(json.dumps({"ranks": [{"graphs": "many"}]}))
    with pytest.raises(ResultsError, match=r"compiling.json is of another version \(ranks"):
        ingest(results, tmp_path / "recording", more_tables=TABLES_OF_SCRIPTS)
