"""Processes of a script that step together: what each is called, and how they wait for one another."""

import json
import threading

import pytest
from torch import distributed

from profiler_job.jobs.follow import script_ranks
from profiler_job.jobs.follow.script_ranks import FollowError, Ranks


@pytest.fixture
def process(tmp_path, monkeypatch):
    """A rank as its launcher, or torch.distributed, names it."""

    def start(rank=None, size=None, world=None) -> Ranks:
        for name, value in (("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", size)):
            monkeypatch.delenv(name, raising=False)
            if size is not None:
                monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(script_ranks.distributed, "is_initialized", lambda: world is not None)
        monkeypatch.setattr(script_ranks.distributed, "get_world_size", lambda: world)
        monkeypatch.setattr(script_ranks.distributed, "get_rank", lambda: rank)
        return Ranks(tmp_path / "followed")

    return start


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ({}, (0, 1)),
        ({"rank": 1, "size": 2}, (1, 2)),
        ({"rank": 1, "size": 2, "world": 2}, (1, 2)),
        ({"rank": 3, "world": 4}, (3, 4)),
    ],
    ids=["alone", "launched", "launched and joined", "spawned"],
)
def test_a_rank_is_known_from_its_launcher_or_its_process_group(process, named, expected):
    one = process(**named)
    assert one.join() and one.join()
    assert (one.rank, one.size) == expected
    one.write({"seen": 1})
    assert json.loads(one.file.read_text()) == {
        "seen": 1,
        "rank": expected[0],
        "ranks": expected[1],
        "world": expected[1],
        "shared_id": "",
    }


def test_only_the_first_process_of_a_rank_is_followed(process):
    assert process().join()
    assert not process().join()
    assert process(rank=1, size=2).join()


@pytest.fixture
def machines(process, monkeypatch, tmp_path):
    """Make rank `number` of two machines with two ranks each, which met by one store."""
    store = distributed.HashStore()
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", lambda: store)

    def start(number: int) -> Ranks:
        made = process(rank=number % 2, size=2, world=4)
        monkeypatch.setattr(script_ranks.distributed, "get_rank", lambda: number)
        made.folder = tmp_path / f"followed on {number // 2}"
        assert made.join()
        return made

    return start


def test_ranks_of_several_machines_have_numbers_of_their_own_on_each(machines):
    made = [machines(number) for number in range(4)]
    assert [(one.rank, one.first, one.size, one.world) for one in made] == [
        (0, 0, 2, 4),
        (1, 0, 2, 4),
        (2, 2, 2, 4),
        (3, 2, 2, 4),
    ]
    assert len({one.file for one in made}) == 4


def test_ranks_of_several_machines_wait_for_one_another(machines):
    *early, last = [machines(number) for number in range(4)]
    came: list[int] = []
    gone: list[int] = []
    may_leave = threading.Event()

    def meet(one: Ranks) -> None:
        one.meet("here")
        came.append(one.rank)
        if one.rank:
            may_leave.wait()
        one.leave()
        gone.append(one.rank)

    waiting = [threading.Thread(target=meet, args=(one,)) for one in (*early, last)]
    for thread in waiting[:-1]:
        thread.start()
    waiting[0].join(0.05)
    assert not came
    waiting[-1].start()
    waiting[0].join(0.05)
    assert not gone, "rank 0 may hold the store of the others"
    may_leave.set()
    for thread in waiting:
        thread.join()
    assert sorted(came) == sorted(gone) == [0, 1, 2, 3]


def test_where_another_machine_is_not_profiled_that_is_said(machines, monkeypatch):
    monkeypatch.setattr(script_ranks, "WAIT_S", 0.0)
    one = machines(0)
    one.size = 1
    with pytest.raises(FollowError, match="and 1 of 4 came: the others have ended, or are not profiled"):
        one.meet("here")
    unreachable = RuntimeError("Broken pipe")
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", lambda: raised(unreachable))
    with pytest.raises(FollowError, match=r"out of reach \(Broken pipe\)"):
        one.meet("there")


def raised(error: Exception):
    raise error


def test_ranks_wait_for_one_another(process):
    first, second = process(rank=0, size=2), None
    first.join()
    second = process(rank=1, size=2)
    second.join()
    came: list[int] = []
    waiting = threading.Thread(target=lambda: (first.meet("here"), came.append(0)))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive() and not came
    second.meet("here")
    waiting.join()
    assert came == [0]


def test_a_rank_that_waits_for_ever_says_for_which(process, monkeypatch):
    monkeypatch.setattr(script_ranks, "WAIT_S", 0.0)
    one = process(rank=1, size=3)
    one.join()
    with pytest.raises(FollowError, match="rank 1 waited 0 s at the end of a step for rank 0, 2"):
        one.meet("here")
