from pathlib import Path

import pytest

from profiler_job.analysis.answers.capture_facts import (
    FactsError,
    collect_facts,
    normalise_options,
    parse_name,
    parse_with,
    spell_size,
)
from profiler_job.jobs.contract.handouts import HANDOUTS, Shape
from profiler_job.jobs.sweep.plan import load_sweep
from tests.answers.class_captures import make_capture


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("small_ctx128_forward", {"size": "small", "context_length": 128, "mode": "forward"}),
        ("nsys_2p7b_seq256_full", {"size": "2.7B", "context_length": 256, "mode": "train_step"}),
        ("result_xl_1024", {"size": "xl", "context_length": 1024}),
        ("trace_fwd=true_m=small_ctx=128", {"size": "small", "context_length": 128, "mode": "forward"}),
        ("profiles/large/ctx512/fwd_bwd", {"size": "large", "context_length": 512, "mode": "forward_backward"}),
        ("2.7b_ctx512_train_step", {"size": "2.7B", "context_length": 512, "mode": "train_step"}),
        ("model_forward_small_cl_128", {"size": "small", "context_length": 128, "mode": "forward"}),
        ("nsys_a_medium_s128", {"size": "medium", "context_length": 128}),
        ("medium_ctx256_inference", {"size": "medium", "context_length": 256, "mode": "forward"}),
        ("profile_xl_128_fwd", {"size": "xl", "context_length": 128, "mode": "forward"}),
        ("result-c128", {"context_length": 128}),
        ("small_256_bs8_bf16_train", {"batch_size": 8, "precision": "bf16", "mode": "train_step"}),
        ("nsys_small_seq128_forward-backward", {"context_length": 128, "mode": "forward_backward"}),
        (
            "num_layers_32_num_heads_32_d_model_2560_d_ff_10240_context_length_512_batch_size_4",
            {"num_layers": 32, "num_heads": 32, "d_model": 2560, "d_ff": 10240, "context_length": 512, "batch_size": 4},
        ),
        ("small_512_fwd_bwd_optim", {"mode": "train_step"}),
        ("small_512_opt", {"mode": "train_step"}),
        ("run7", {}),
    ],
)
def test_names_of_public_repositories_are_read(name, known):
    assert parse_name(name).items() >= known.items()
    if not known:
        assert parse_name(name) == {}


def test_two_numbers_without_a_word_are_no_context():
    assert "context_length" not in parse_name("small_128_256")


def test_a_pattern_names_the_facts():
    assert parse_with("{size}_{any}_T{context}_{mode}", "xl_x7_T64_fwd") == {
        "size": "xl",
        "context_length": 64,
        "mode": "forward",
    }
    assert parse_with("{size}_ctx{context}", "other") == {}
    for pattern in ("no field", "{colour}", "{size}{size}"):
        with pytest.raises(FactsError, match="--name-pattern"):
            parse_with(pattern, "x")


def test_a_size_has_the_spelling_of_the_hand_outs():
    assert [spell_size(name) for name in ("2p7b", "10b", "XL", "mine")] == ["2.7B", "10B", "xl", "mine"]


def test_facts_come_from_the_file_before_options_before_names(tmp_path):
    make_capture(tmp_path / "small_ctx128_forward.sqlite")
    make_capture(tmp_path / "b.sqlite")
    text = 'batch_size = 2\n[[capture]]\nfile = "b.sqlite"\nsize = "large"\ncontext_length = 512\n'
    (tmp_path / "captures.toml").write_text(text)
    named, other = sorted(collect_facts(tmp_path, {"context_length": 256, "batch_size": 8}), key=lambda one: one.name)[
        ::-1
    ]
    assert (named.known["size"], named.known["context_length"], named.known["batch_size"]) == ("small", 256, 2)
    assert (named.where["size"], named.where["context_length"]) == ("file name", "option")
    assert (other.known["size"], other.known["context_length"], other.known["d_model"]) == ("large", 512, 1280)


def test_a_csv_gives_facts_and_holes(tmp_path):
    make_capture(tmp_path / "a.sqlite")
    (tmp_path / "captures.csv").write_text(
        "file,model,ctx,mode,status\na.sqlite,small,128,fwd,\n,small,1024,train,oom\n"
    )
    captures = collect_facts(tmp_path, {})
    assert [(one.known["mode"], one.known.get("status")) for one in captures] == [
        ("forward", None),
        ("train_step", "oom"),
    ]
    assert captures[1].path is None


def test_what_is_not_known_is_asked_for_by_name(tmp_path):
    make_capture(tmp_path / "run7.sqlite")
    with pytest.raises(FactsError, match=r"run7: size and context_length.*--size, --context-length"):
        collect_facts(tmp_path, {})
    assert len(collect_facts(tmp_path, {"size": "mine", "context_length": 64})) == 1


def test_xl_is_two_models_and_needs_its_year(tmp_path):
    make_capture(tmp_path / "xl_ctx128_forward.sqlite")
    with pytest.raises(FactsError, match="--handout 2025 or --handout 2026"):
        collect_facts(tmp_path, {})
    for year, handout in HANDOUTS.items():
        (facts,) = collect_facts(tmp_path, {}, handout=year)
        assert facts.known["d_model"] == handout.sizes["xl"].d_model
        assert (facts.known["batch_size"], facts.known["vocab_size"]) == (4, 10_000)


def test_a_shape_in_a_name_gives_the_size_of_the_hand_out(tmp_path):
    make_capture(tmp_path / "d_model_768_d_ff_3072_num_layers_12_num_heads_12_ctx128.sqlite")
    (facts,) = collect_facts(tmp_path, {})
    assert (facts.known["size"], facts.where["size"]) == ("small", "hand-out")


@pytest.mark.parametrize(
    "text",
    [
        "colour = 1",
        'mode = "dream"',
        'batch_size = "four"',
        "[[capture]]\nstatus = 'tired'",
        "handout = 1999",
        "batch_size = 0",
        "[sizes.mine]\nd_model = 3",
        "not toml",
    ],
)
def test_a_wrong_file_of_facts_is_one_line(text, tmp_path):
    make_capture(tmp_path / "small_ctx128.sqlite")
    (tmp_path / "captures.toml").write_text(text)
    with pytest.raises(FactsError) as raised:
        collect_facts(tmp_path, {})
    assert "\n" not in str(raised.value)


def test_a_size_of_ones_own_has_a_table(tmp_path):
    make_capture(tmp_path / "mine_ctx128.sqlite")
    (tmp_path / "captures.toml").write_text(
        'size = "mine"\n[sizes.mine]\nd_model = 64\nd_ff = 128\nnum_layers = 2\nnum_heads = 2\n'
    )
    (facts,) = collect_facts(tmp_path, {})
    assert facts.known["num_layers"] == 2


def test_options_use_the_same_words():
    assert normalise_options({"size": "2p7b", "mode": "fwd", "precision": None}) == {"size": "2.7B", "mode": "forward"}


@pytest.mark.parametrize("year", [*HANDOUTS])
def test_a_sweep_of_a_hand_out_has_its_models_and_batch(year):
    sweep, handout = load_sweep(Path(f"cs336_{year}")), HANDOUTS[year]
    assert {Shape(*(getattr(run, name) for name in Shape._fields)) for run in sweep.runs} == {*handout.sizes.values()}
    assert {(run.batch_size, run.vocab_size) for run in sweep.runs} == {(handout.batch_size, handout.vocab_size)}
