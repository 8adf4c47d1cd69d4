"""Two collectors are compared by kernels at the same place of a step."""

import pandas as pd
import pytest

from tests.bench.two_collectors import compare_script, simplify_name

ROWS = [("gemm", "gemm", "forward", "Net/a", 1000), ("add", "elementwise", "backward", "Net/b", 100)]


def make_rows(**times: int) -> pd.DataFrame:
    """Two rounds of three steps of each collector. times: of the first kernel under a collector."""
    rows = []
    for collector in ("nsys", "torch"):
        for number in (1, 2):
            for step in range(3):
                for place, (name, family, phase, module, ns) in enumerate(ROWS):
                    ns = times.get(collector, ns) if place == 0 else ns
                    ns = 10 * ns if (number, step) == (1, 0) else ns  # a slow moment
                    rows.append(("s", collector, number, step, place, name, family, phase, module, ns))
    columns = ["script", "collector", "round", "step", "place", "name", "family", "phase", "module", "ns"]
    return pd.DataFrame(rows, columns=columns)


def test_a_slow_moment_counts_for_neither():
    found = compare_script(make_rows())
    assert (found["kernels"], found["sequences"], found["rounds"], found["steps"]) == ([2], 1, 2, 3)
    assert found["total"]["percent"] == 0 and found["module"] == 0


def test_a_slower_kernel_is_a_difference_of_its_family():
    found = compare_script(make_rows(torch=1020))
    assert found["families"]["gemm"]["percent"] == pytest.approx(2)
    assert found["families"]["elementwise"]["percent"] == 0
    assert found["module"] == pytest.approx(100 * (1020 / 1120 - 1000 / 1100), abs=0.001)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, (bool)1, const float>(T1 *, const T2 *, int)",
            "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, true, float const>(float*, int)",
        ),
        (
            "void f<(int)128, void at::g<at::Add<float>>(at::T &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
            "void f<128, at::g<at::Add<float> >(at::T&, at::Add<float> const&)::{lambda(int)#1}>(int, at::g<x>)",
        ),
        ("void f<(unsigned int)4>(T1)", "void f<4u>(int)"),
    ],
)
def test_names_that_are_spelled_differently_are_the_same(one, other):
    assert simplify_name(one) == simplify_name(other)
    assert simplify_name(one) != simplify_name(one.replace("<(", "<(int)9, ("))
