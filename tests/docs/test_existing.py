"""The applications of the guides for those that exist: their own tests pass before and after, unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.tools import existing
from tests.prefork import Prefork

pytestmark = pytest.mark.slow

# From the application to the lines that the library may take.
APPLICATIONS = {
    "fastapi_async": 50,
    "fastapi_sqlmodel": 45,
    "flask_login": 35,
    "litestar_alchemy": 30,
}


def test_every_application_is_tested() -> None:
    assert existing.names() == list(APPLICATIONS)


# Without the plugin: pytest is to rewrite its assertions.
LOADED = """
import warnings
# advanced-alchemy, on SQLAlchemy 2.1.
warnings.filterwarnings("ignore", "The declarative_mixin decorator")
import pytest, advanced_alchemy.base, alembic.config, fastapi, flask, litestar, msk_auth.stores.sqlalchemy, sqlmodel
"""


@pytest.fixture(scope="module")
def loaded() -> Iterator[Prefork]:
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with Prefork(LOADED, environment) as loaded:
        yield loaded


# The tests of keys check the migrations as well.
@pytest.mark.parametrize(
    "folders",
    [
        pytest.param(["before", "tests"], marks=pytest.mark.faults),
        ["after", "tests", "tests_of_keys"],
    ],
    ids=["before", "after"],
)
@pytest.mark.parametrize("name", APPLICATIONS)
def test_its_own_tests_pass(name: str, folders: list[str], loaded: Prefork, tmp_path: Path) -> None:
    folder = existing.EXAMPLES / name
    tree, *tests = [folder / each for each in folders]
    loaded.run(
        tree,
        tmp_path / "output.txt",
        "import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))",
        *("pytest", "-q", "-p", "no:cacheprovider", "-p", "anyio.pytest_plugin"),
        *("-c", str(existing.EXAMPLES / "pytest.ini"), "--rootdir", str(folder)),
        # The fixtures of `tests` serve the tests of keys as well.
        *("--confcutdir", str(folder), *map(str, tests)),
    )


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_library_takes_no_more_lines_than_it_may(name: str) -> None:
    assert 0 < existing.added(name) <= APPLICATIONS[name]
