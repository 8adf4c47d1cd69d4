from tests.render.conftest import undrawn  # noqa: F401
