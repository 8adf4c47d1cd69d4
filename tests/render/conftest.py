"""The whole site, built once from a made-up recording."""

import pytest

from tests.site_builder import build_site
from tests.synthetic import recording


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    rec = recording(("small", "2.7B"), (128, 512, 1024))
    for table in ("kernels", "ranges"):
        frame = getattr(rec, table)
        frame["run_id"] = frame["run_id"].astype("category")
    return build_site(tmp_path_factory.mktemp("site"), rec)
