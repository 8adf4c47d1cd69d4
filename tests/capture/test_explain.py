"""`show --explain` says what a name is without a profile, and what a profile has of it with one."""

import pytest
from typer.testing import CliRunner

from profiler_job.__main__ import app
from profiler_job.analysis.reference import cuda_api, kernel_families
from profiler_job.analysis.show.explain import describe

from .nsys_files import Export
from .profiles import profile

GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x4_nt_align4>(T1::Params)"
SPLIT = "sm90_xmma_gemm_f32f32_tf32f32_f32_nt_n_tilesize128x128x32_execute_segment_k_on_kernel__5x_cublas"
CAST = (
    "void at::native::vectorized_elementwise_kernel<(int)8, "
    "at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float) (instance 1)]>(int, T2, T3)"
)


@pytest.fixture
def capture(tmp_path):
    export = Export()
    for at in (0, 100):
        export.launch(at, start=at + 10, end=at + 50, name=GEMM)
    export.launch(200, start=210, end=220, name=GEMM.replace("128x128", "64x64"))
    export.launch(300, start=310, end=320, name="my own kernel\x1b[2J")
    export.call(400, 450, name="cudaStreamSynchronize_v3020")
    export.call(500, 510, name="cudaNewCall_v13000")
    return export.sqlite(tmp_path / "x.sqlite")


def _explain(name, *arguments):
    done = CliRunner().invoke(app, ["show", "--explain", name, *map(str, arguments)])
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def _error(done) -> str:
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (GEMM, ["Family: GEMM (gemm)", "Rule: gemm-cutlass, part main", "Math path: TF32 tensor cores [inferred]"]),
        (GEMM, ["Library: CUTLASS", "Architecture: sm80\n", "Layout: nt (", "Tile: 128 x 128 x 16", "Stages: 4"]),
        (SPLIT, ["Split-K: yes [inferred]", "[inferred]: from many such names"]),
        (CAST, ["Rule: copy-cast", "Copies while converting the data type", "Type of the elements: both"]),
        ("cudaStreamSynchronize_v3020", ["cudaStreamSynchronize: an API call", "Synchronisation: ", ".item()"]),
        ("cuCtxSynchronize", ["described with cudaDeviceSynchronize"]),
        ("softmax", ["Softmax: a family of kernels", "  softmax-library: "]),
        ("Fused attention", ["QK^T, scaling, mask", "attention-flash"]),
        ("gemm-xmma", ["a rule of the family GEMM", "Recognised by: xmma_"]),
    ],
)
def test_a_name_is_explained_without_a_profile(name, expected):
    done = _explain(name)
    assert (done.exit_code, done.stderr) == (0, "")
    assert all(text in done.stdout for text in expected)


def test_all_that_the_reference_data_have_is_explained():
    for name in (*kernel_families.FAMILIES, *(call.name for call in cuda_api.API_CALLS)):
        assert len(describe(name)) > 1, name
    for rule in kernel_families.RULES:
        assert len(describe(rule.name)) > 2 and len(describe(rule.example)) > 2, rule.name


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("cudaStreamSynchronise", "the closest names are cudaStreamSynchronize, "),
        ("sofmax", "the closest names are softmax"),
        ("gem-xmma", "the closest names are gemm-xmma"),
        ("\x1b[3J", "families are gemm, attention"),
    ],
)
def test_an_unknown_name_is_one_line_with_the_closest_ones(capture, name, closest):
    for profiles in ([], [capture]):
        line = _error(_explain(name, *profiles))
        assert closest in line
        assert "\x1b" not in line


@pytest.mark.parametrize("name", [GEMM, "GEMM_128X128", "cutlass_80_tensorop…16x4_nt_align4>(T1::Params"])
def test_a_profile_says_how_much_of_a_kernel_it_has(capture, name):
    done = _explain(name, capture)
    if "…" in name:
        assert "is in 2 names of x.sqlite" in done.stdout
    else:
        assert done.stdout.startswith(f"{GEMM}: a kernel\n")
        assert "In x.sqlite: 2 kernels, 80 ns, 80.0% of kernel time" in done.stdout


def test_several_names_are_listed_with_calls_and_time(capture):
    done = _explain("nt_align4", capture)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "nt_align4 is in 2 names of x.sqlite:"
    assert lines[1] == f"  {GEMM}: 2 in 80 ns"
    assert _explain("nt_align4", capture, "--top", 1).stdout.splitlines()[2].startswith("  ... and 1 more")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemm", "In x.sqlite: 3 kernels, 90 ns, 90.0% of kernel time\n  void cutlass"),
        ("attention", "In x.sqlite: none"),
        ("cudaMalloc", "In x.sqlite: none"),
        ("cudaStreamSynchronize", "In x.sqlite: 1 call, 50 ns of host time"),
        ("LaunchKernel", "They launch 4 kernels, 10 ns median from call to kernel"),
        ("cudaNewCall", "cudaNewCall: an API call that is not described here\nIn x.sqlite: 1 call, 10 ns"),
        ("my own", "Family: Unclassified (other)\nNo rule matched."),
    ],
)
def test_a_profile_says_what_it_has_of_families_calls_and_unknown_kernels(capture, name, expected):
    done = _explain(name, capture)
    assert done.exit_code == 0
    assert expected in done.stdout
    assert "\x1b" not in done.stdout


def test_a_short_name_of_a_finding_is_found_again():
    done = _explain("elementwise_kernel<128, 2, BinaryFunctor<float, DivFunctor<float>", profile("train_tf32"))
    assert "Rule: elementwise-div" in done.stdout


def test_a_batch_goes_on_past_what_cannot_be_read(capture, tmp_path):
    (tmp_path / "bad.sqlite").write_text("no")
    done = _explain("gemm", tmp_path / "bad.sqlite", capture)
    assert done.exit_code == 65
    assert "is not an SQLite file" in done.stderr
    assert "In x.sqlite: 3 kernels" in done.stdout


def test_a_users_own_rules_explain_too(tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nname = "mine"\nfamily = "attention"\npattern = "flurble"\n')
    assert "Rule: mine" in _explain("void flurble(int)", "--rules", rules).stdout
    _error(_explain("void flurble(int)"))
    rules.write_text("[[rule]]\n")
    _error(_explain("gemm", "--rules", rules))


@pytest.mark.parametrize("option", [("--format", "json"), ("--report", "cuda_api_sum")])
def test_an_option_of_tables_is_refused(option):
    assert option[0] in _error(_explain("gemm", *option))


def test_without_a_name_a_profile_is_needed():
    done = CliRunner().invoke(app, ["show"])
    assert "PROFILE" in _error(done)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_sentences_keep_within_the_terminal_and_names_stay_in_one_piece(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = [
        line
        for name in ("softmax", "gemm-xmma", "cudaStreamSynchronize", GEMM, CAST)
        for line in _explain(name).stdout.splitlines()
    ]
    assert {f"{GEMM}: a kernel", f"{CAST}: a kernel"} <= set(lines)
    copied = ("Recognised by: ", "Such as: ", GEMM, CAST)
    assert [line for line in lines if len(line) > columns and not line.startswith(copied)] == []
