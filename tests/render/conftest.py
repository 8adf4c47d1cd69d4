"""The whole site, built once from a made-up recording."""

import pytest

from profiler_job.analysis.render import charts
from tests.site_builder import build_small_site


@pytest.fixture(scope="session")
def site(built_once):
    return built_once("small", build_small_site)


@pytest.fixture(scope="module")
def undrawn():
    """In place of each chart an empty drawing, for tests of words and files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "render", lambda *arguments, **options: '<svg width="1" height="1"></svg>')
        yield
