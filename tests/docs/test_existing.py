"""The applications of the guides for those that exist: their own tests pass before and after, unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.tools import existing
from tests.prefork import Prefork

pytestmark = pytest.mark.slow

# From the application to the lines that the library may take, and the files that change.
APPLICATIONS = {
    "fastapi_async": (
        50,
        [
            "helpdesk/keys.py",
            "helpdesk/main.py",
            "helpdesk/tickets/router.py",
            "helpdesk/tickets/service.py",
            "migrations/env.py",
        ],
    ),
    "fastapi_sqlmodel": (
        45,
        ["inventory/keys.py", "inventory/main.py", "inventory/routes.py", "migrations/env.py"],
    ),
    "flask_login": (35, ["shop/__init__.py", "shop/api.py", "shop/keys.py"]),
    "litestar_alchemy": (
        30,
        ["club/app.py", "club/controllers.py", "club/keys.py"],
    ),
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
@pytest.mark.parametrize("folders", [["before", "tests"], ["after", "tests", "tests_of_keys"]])
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
    limit, _ = APPLICATIONS[name]
    assert 0 < existing.added(name) <= limit


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_page_shows_every_file_that_changes(name: str) -> None:
    _, files = APPLICATIONS[name]
    shown = existing.render(name)
    assert list(existing.diffs(name)) == files
    assert all(f"+++ b/{path}" in shown for path in files)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_each_application_has_a_guide(name: str) -> None:
    marker = f"existing-{name.replace('_', '-')}"
    page = existing.EXAMPLES.parents[1] / "docs" / "how-to" / f"{marker}.md"
    assert f"<!-- generated: {marker} -->" in page.read_text("utf-8")
