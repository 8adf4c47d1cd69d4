"""Kernel names are short where they are shown, and still say what the kernel is."""

import time

import pytest

from profiler_job.analysis.reference.kernel_names import elide, shorten

_LAMBDA = "::[lambda() (instance 3)]::operator ()() const::[lambda(float) (instance 1)]"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)",
            "cutlass_80_simt_sgemm_256x128_8x4_nn_align1",
        ),
        ("nvjet_sm90_tst_64x8_1x2_h_bz_TNN", "nvjet_sm90_tst_64x8_1x2_h_bz_TNN"),
        (
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::exp_kernel_cuda(at::TensorIterator &)"
            f"{_LAMBDA}, std::array<char *, (unsigned long)2>>(int, T2, T3)",
            "vectorized_elementwise_kernel<4, exp_kernel_cuda",
        ),
        (
            "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::"
            "BinaryFunctor<float, float, float, at::native::binary_internal::DivFunctor<float>>>(at::TensorIterator "
            "&, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
            "elementwise_kernel<128, 2, BinaryFunctor<float, DivFunctor<float>>>>",
        ),
        ("vectorAdd(const float *, const float *, float *, int)", "vectorAdd"),
        ("(int", "(int"),
    ],
)
def test_a_name_is_shortened_to_what_it_says(name, short):
    assert shorten(name) == short


def test_no_short_name_is_longer_than_asked_for_and_long_ones_take_no_time():
    began = time.process_time()
    for name in ("x" * 65536, "::[lambda()" * 6000, "(at::TensorIterator &" * 3000, "float, " * 9000):
        assert len(shorten(name)) == 72
    assert time.process_time() - began < 0.1


def test_what_is_elided_lies_in_the_middle():
    assert elide("abcdefghijklmnopqrstuvwxyz", 11) == "abcdefgh\N{HORIZONTAL ELLIPSIS}yz"
    assert elide("abc", 3) == "abc"
