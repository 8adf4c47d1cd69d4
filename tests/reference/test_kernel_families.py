"""The taxonomy on real kernel names: from the shared profiles, and from public profiles of other libraries."""

import csv
import sqlite3
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler_job.analysis.reference import kernel_families
from profiler_job.analysis.reference.kernel_families import (
    BUILT_IN,
    FAMILIES,
    OTHER,
    RULES,
    add_user_rules,
    classify,
    find_family,
    is_main_gemm,
)
from profiler_job.analysis.reference.rules import UNCLASSIFIED, RuleError, RuleProblem, load_rules

with (Path(__file__).parent / "kernel_names.tsv").open(encoding="utf-8", newline="") as file:
    NAMES = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def kernels_of(path: Path) -> list[tuple[str, int]]:
    """(demangled name, nanoseconds) of every kernel of an export, in launch order; empty when it has no kernels."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(
            "SELECT s.value, k.end - k.start FROM CUPTI_ACTIVITY_KIND_KERNEL k"
            " JOIN StringIds s ON s.id = k.demangledName ORDER BY k.start"
        ).fetchall()
    finally:
        connection.close()


def test_the_table_holds_at_least_120_distinct_real_names_of_every_family():
    assert len({row["name"] for row in NAMES}) == len(NAMES) >= 120
    assert {row["family"] for row in NAMES} == set(FAMILIES)


@pytest.mark.parametrize("row", NAMES, ids=[f"{i}-{row['name'][:40]}" for i, row in enumerate(NAMES)])
def test_real_name_has_its_family_and_part(row):
    found = classify(row["name"])
    assert (found.family, found.part) == (row["family"], row["part"]), found.rule


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_each_rule_catches_its_own_example_and_explains_itself(rule):
    assert classify(rule.example).rule == rule.name
    assert rule.family in FAMILIES and rule.part and rule.explanation.endswith((".", "]"))
    assert kernel_families.find_rule(classify(rule.example)) is rule


def test_rule_names_are_unique():
    assert [name for name, times in Counter(rule.name for rule in RULES).items() if times > 1] == []


def test_families_have_labels_and_explanations_in_a_stable_order():
    assert next(iter(FAMILIES)) == "gemm" and list(FAMILIES)[-1] == OTHER
    assert all(key == entry.key and entry.label and entry.explanation for key, entry in FAMILIES.items())
    assert len({entry.label for entry in FAMILIES.values()}) == len(FAMILIES)


@pytest.mark.parametrize("name", ["", "my_kernel", "void f(int)", "<script>alert(1)</script>", "🚀\n|`"])
def test_unknown_name_is_other(name):
    assert classify(name) == UNCLASSIFIED
    assert find_family(name) == OTHER
    assert not is_main_gemm(name)
    assert kernel_families.find_rule(classify(name)) is None


def test_hand_written_softmax_and_norm_cannot_be_told_from_names():
    parts = [
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::MaxOps<float>>>",
        "void at::native::vectorized_elementwise_kernel<(int)4, at::native::exp_kernel_cuda(at::TensorIteratorBase &)>",
    ]
    assert [find_family(name) for name in parts] == ["reduce", "elementwise"]


def test_split_k_kernels_are_not_gemms_of_their_own():
    main = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_execute_{}__5x_cublas"
    assert is_main_gemm(main.format("kernel"))
    assert not is_main_gemm(main.format("split_k_kernel"))
    assert find_family(main.format("split_k_kernel")) == "gemm"
    # nvjet's own splitK is one kernel and is the GEMM
    assert is_main_gemm("nvjet_sm90_tst_96x128_64x6_2x1_v_bz_splitK_NNN")


def test_spelling_of_nsys_and_of_the_pytorch_profiler_agree():
    nsys = (
        "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, float, float, at::native::<unnamed>::X>(T4 *)"
    )
    torch = (
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, "
        "at::native::(anonymous namespace)::X>(float*)"
    )
    assert classify(nsys) == classify(torch)


@given(st.text())
def test_any_text_gets_a_known_family(name):
    assert find_family(name) in FAMILIES


def test_long_hostile_names_take_no_time():
    names = ["elementwise_kernel" * 250, "a" * 4000, "reduce_kernel" * 300, "multi_tensor_apply" * 220, "<" * 4000]
    started = time.process_time()  # not the clock on the wall: the machine may be busy with something else
    for name in names:
        BUILT_IN.classify(name)
    assert time.process_time() - started < 5


def test_no_kernel_time_of_the_shared_profiles_is_unclassified(shared_profiles):
    totals = defaultdict(Counter)
    for path in shared_profiles.glob("*.sqlite"):
        for name, duration in kernels_of(path):
            totals[path.stem][find_family(name)] += duration
    assert len(totals) >= 7
    assert {profile: total[OTHER] for profile, total in totals.items() if total[OTHER]} == {}


@pytest.mark.parametrize(
    ("profile", "gemms"),
    [
        ("train", 2 * (9 * 12 + 1 + 18 * 12 + 2)),
        ("train_threads", 2 * (9 * 12 + 1 + 18 * 12 + 2)),
        ("train_tf32", 2 * (9 * 12 + 1 + 18 * 12 + 2)),
        ("train_bf16_sdpa", 2 * (7 * 12 + 1 + 14 * 12 + 2)),  # QK^T and AV are inside fused attention
        ("forward_whole", 5 * (9 * 12 + 1)),
    ],
)
def test_gemms_are_counted_as_the_architecture_has_them(shared_profiles, profile, gemms):
    kernels = kernels_of(shared_profiles / f"{profile}.sqlite")
    assert sum(is_main_gemm(name) for name, _ in kernels) == gemms


def test_every_split_k_kernel_directly_follows_its_gemm(shared_profiles):
    """312 `split_k_kernel` and 50 `splitKreduce` launches of train.sqlite: the launch before each is a GEMM, and for
    `split_k_kernel` the one of the same name but for that word."""
    kernels = [name for name, _ in kernels_of(shared_profiles / "train.sqlite")]
    pairs = [(before, name) for before, name in pairwise(kernels) if classify(name).part == "splitk"]
    assert Counter("splitKreduce" in name for _, name in pairs) == {False: 312, True: 50}
    assert all(is_main_gemm(before) for before, _ in pairs)
    own = [(before, name) for before, name in pairs if "split_k_kernel" in name]
    assert all(name.replace("split_k_kernel", "kernel") == before for before, name in own)


def test_user_rules_come_before_the_built_in_ones(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(
        '[[rule]]\nfamily = "attention"\npattern = "my_special_gemm"\npart = "fused"\nexample = "my_special_gemm<1>"\n'
        '[[rule]]\nname = "mine"\nfamily = "norm"\npattern = "duplicateWithKeys"\n',
        encoding="utf-8",
    )
    mine = add_user_rules(path)
    assert find_family("my_special_gemm_kernel", mine) == "attention"
    assert find_family("my_special_gemm_kernel") == "gemm"
    assert classify("duplicateWithKeys(int)", mine) == ("norm", "", "mine", 1)
    assert not is_main_gemm("my_special_gemm_kernel", mine)
    assert find_family("ampere_sgemm_128x64_tn", mine) == "gemm"


@pytest.mark.parametrize(
    ("text", "code", "names"),
    [
        ("", RuleProblem.NO_RULES, "[[rule]]"),
        ("[rule]\n", RuleProblem.NO_RULES, "[[rule]]"),
        ("[[rules]]\n", RuleProblem.UNKNOWN_KEY, "'rules'"),
        ("[[rule]]\npattern = 'x'\n", RuleProblem.MISSING_KEY, "rule 1: 'family'"),
        ("[[rule]]\nfamily = 'gemm'\n", RuleProblem.MISSING_KEY, "rule 1: 'pattern'"),
        ("[[rule]]\nfamily = 'gem'\npattern = 'x'\n", RuleProblem.UNKNOWN_FAMILY, "gemm, attention"),
        ("[[rule]]\nfamily = 'gemm'\npattern = '('\n", RuleProblem.NOT_A_PATTERN, "'('"),
        ("[[rule]]\nfamily = 'gemm'\npattern = 'x*'\n", RuleProblem.MATCHES_ALL, "'x*'"),
        ("[[rule]]\nfamily = 'gemm'\npattern = 'x'\nexample = 'y'\n", RuleProblem.MISSES_EXAMPLE, "'y'"),
        ("[[rule]]\nfamily = 'gemm'\npattern = 'x'\ncolour = 'y'\n", RuleProblem.UNKNOWN_KEY, "'colour'"),
        ("[[rule]]\nfamily = 'gemm'\npattern = 7\n", RuleProblem.NOT_TEXT, "7"),
        ("[[rule]\n", RuleProblem.NOT_TOML, "rules.toml"),
    ],
)
def test_wrong_user_rules_say_file_rule_and_remedy(tmp_path, text, code, names):
    path = tmp_path / "rules.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RuleError, match=r"rules\.toml") as error:
        load_rules(path, FAMILIES)
    assert error.value.code is code and names in str(error.value)


def test_missing_rule_file_says_so(tmp_path):
    with pytest.raises(RuleError) as error:
        load_rules(tmp_path / "none.toml", FAMILIES)
    assert error.value.code is RuleProblem.UNREADABLE
