"""Reference AdamW against PyTorch's."""

import pytest
import torch

from profiler_job.jobs.workloads.adamw import AdamW


def parameters() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in ((5, 7), (7,), (3, 2, 4))]


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01},
        {"lr": 3e-2, "betas": (0.8, 0.95), "eps": 1e-9, "weight_decay": 0.3},
    ],
)
def test_it_follows_torchs_adamw_over_many_steps(settings):
    """They differ in where eps goes (the course adds it to the uncorrected root), which a usual eps does not show."""
    ours, theirs = parameters(), parameters()
    own, reference = AdamW(ours, **settings), torch.optim.AdamW(theirs, **settings)
    generator = torch.Generator().manual_seed(4)
    for _ in range(20):
        for a, b in zip(ours, theirs):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.clone()
        own.step()
        reference.step()
        for a, b in zip(ours, theirs):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("moved", [True, False])
def test_where_eps_goes_is_all_that_differs_from_torchs(moved):
    """With gradients as small as eps it shows: moved to where torch has it, the two are the same, else they are not."""
    ours, theirs = ([one.detach().double().requires_grad_() for one in parameters()] for _ in range(2))
    settings = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    own, reference = AdamW(ours, **settings), torch.optim.AdamW(theirs, **settings)
    generator = torch.Generator().manual_seed(4)
    for step in range(1, 5):
        own.eps = 1e-8 * (1 - 0.999**step) ** 0.5 if moved else 1e-8
        for a, b in zip(ours, theirs):
            a.grad = 1e-8 * torch.randn(a.shape, generator=generator, dtype=torch.float64)
            b.grad = a.grad.clone()
        own.step()
        reference.step()
    off = max((a - b).abs().max().item() for a, b in zip(ours, theirs))
    assert off < 1e-14 if moved else off > 1e-3


def test_a_parameter_without_gradient_is_left_alone():
    (first, second, _) = ours = parameters()
    kept = second.detach().clone()
    first.grad = torch.ones_like(first)
    AdamW(ours).step()
    assert torch.equal(second, kept)
    assert not torch.equal(first, parameters()[0])


def test_moments_appear_in_the_first_step_only():
    ours = parameters()
    adamw = AdamW(ours)
    assert not adamw.moments
    for parameter in ours:
        parameter.grad = torch.ones_like(parameter)
    adamw.step()
    addresses = [moment.data_ptr() for pair in adamw.moments.values() for moment in pair]
    adamw.step()
    assert [moment.data_ptr() for pair in adamw.moments.values() for moment in pair] == addresses
    assert len(addresses) == 2 * len(ours)


def test_zero_grad_releases_the_gradients():
    ours = parameters()
    for parameter in ours:
        parameter.grad = torch.ones_like(parameter)
    AdamW(ours).zero_grad()
    assert all(parameter.grad is None for parameter in ours)
