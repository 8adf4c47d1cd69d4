import pytest

from tests.capture.nsys_files import Export


def export(kernels=(("forward", "gemm", 50),), num_steps=3, hostile="", blocks=1):
    """A capture whose steps launch `kernels`: (phase, name, ns), each of so many blocks."""
    made = Export()
    made.gpu()
    for step in range(num_steps):
        at = 10_000 * step
        made.push("step", at, at + 5000)
        for number, (phase, name, ns) in enumerate(kernels):
            begin = at + 100 + 500 * number
            made.push(phase, begin, begin + 400)
            if hostile:
                made.push(hostile, begin + 1, begin + 399)
            made.launch(begin + 10, start=begin + 30, end=begin + 30 + ns, name=name, blocks=blocks)
    return made


@pytest.fixture
def capture(tmp_path):
    return export().sqlite(tmp_path / "a.sqlite")
