"""Which optimizer ends the steps of a script."""

import torch
from torch import nn

from profiler_job.jobs.follow.ending_optimizer import EndingOptimizer


def is_chosen(*others: torch.optim.Optimizer, model: nn.Module, updates: int = 3) -> bool:
    """Return whether an optimizer of the model ends steps after updates, though others have not stepped."""
    ending, optimizer = EndingOptimizer(skip=3), torch.optim.SGD(model.parameters(), lr=0.1)
    for each in (*others, optimizer):
        ending.note_made(each)
    return [ending.choose(ending.note_update(optimizer)) for _ in range(updates)][-1]


def test_a_wrapper_that_never_steps_itself_is_not_waited_for():
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    assert is_chosen(model=model)
    assert is_chosen(torch.optim.Adam(model.parameters()), model=model), "SAM, with the same parameters"
    of_both = torch.optim.Adam([*model.parameters(), *other.parameters()])
    for waited_for in (torch.optim.Adam(other.parameters()), of_both):
        assert not is_chosen(waited_for, model=model)
        assert is_chosen(waited_for, model=model, updates=30)


def test_parameters_without_a_size_are_left_out():
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(2))
    ending, optimizer = EndingOptimizer(skip=3), torch.optim.SGD(model.parameters(), lr=0.1)
    ending.note_update(optimizer)
    assert ending.list_held() == list(model[0].parameters())
