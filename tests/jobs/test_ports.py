"""Where the ranks of a run meet. A port that the system gives to whoever asks for any was taken, on a machine with two
GPUs, by one of the many sockets of NCCL before the ranks met there: one run of 24 failed."""

import socket

import pytest

from profiler_job.jobs.contract import ports


@pytest.mark.parametrize("given_out", ["20000\t60999", None])
def test_ports_are_none_of_those_that_the_system_gives_out(given_out, monkeypatch, tmp_path):
    if given_out:
        (tmp_path / "range").write_text(given_out)
    monkeypatch.setattr(ports, "GIVEN_OUT", tmp_path / "range")
    drawn = ports.find_free_ports(50)
    assert len(set(drawn)) == 50
    assert all(ports.LOWEST <= port < (20_000 if given_out else ports.FIRST_GIVEN_OUT) for port in drawn)


def test_a_port_in_use_is_not_drawn(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        used = taken.getsockname()[1]
        coming = iter([used, *range(10_000, 32_768)])
        monkeypatch.setattr(ports.random.SystemRandom, "randrange", lambda self, low, high: next(coming))
        (free,) = ports.find_free_ports(1)
    assert free != used


def test_where_the_system_gives_out_all_ports_one_of_them_is_drawn(monkeypatch, tmp_path):
    (tmp_path / "range").write_text("1024\t65535")
    monkeypatch.setattr(ports, "GIVEN_OUT", tmp_path / "range")
    assert len(set(ports.find_free_ports(3))) == 3
