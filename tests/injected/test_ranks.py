"""Processes of a script that step together: what each is called, and how they wait for one another."""

import json
import threading

import pytest

from jobs.injected import ranks
from jobs.injected.ranks import CannotFollow, Ranks


@pytest.fixture
def process(tmp_path, monkeypatch):
    """A rank as its launcher, or torch.distributed, names it."""

    def start(rank=None, size=None, world=None) -> Ranks:
        for name, value in (("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", size)):
            monkeypatch.delenv(name, raising=False)
            if size is not None:
                monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(ranks.distributed, "is_initialized", lambda: world is not None)
        monkeypatch.setattr(ranks.distributed, "get_world_size", lambda: world)
        monkeypatch.setattr(ranks.distributed, "get_rank", lambda: rank)
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
    assert json.loads(one.file.read_text()) == {"seen": 1, "rank": expected[0], "ranks": expected[1]}


def test_only_the_first_process_of_a_rank_is_followed(process):
    assert process().join()
    assert not process().join()
    assert process(rank=1, size=2).join()


def test_ranks_of_several_machines_are_refused(process):
    with pytest.raises(CannotFollow, match="16 processes, of which 8 are on this machine"):
        process(rank=0, size=8, world=16).join()


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
    monkeypatch.setattr(ranks, "WAIT_S", 0.0)
    one = process(rank=1, size=3)
    one.join()
    with pytest.raises(CannotFollow, match="rank 1 waited 0 s at the end of a step for rank 0, 2"):
        one.meet("here")
