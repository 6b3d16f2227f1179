"""The applications of the guides for those that exist: their own tests pass before and after, unchanged."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from docs.tools import existing

pytestmark = pytest.mark.slow

# From the application to the lines that the library may take, and the files that change.
APPLICATIONS = {
    "fastapi_async": (
        60,
        [
            "helpdesk/keys.py",
            "helpdesk/main.py",
            "helpdesk/tickets/router.py",
            "helpdesk/tickets/service.py",
            "migrations/env.py",
        ],
    ),
    "fastapi_sqlmodel": (
        60,
        ["inventory/keys.py", "inventory/main.py", "inventory/routes.py", "migrations/env.py"],
    ),
    "flask_login": (42, ["shop/__init__.py", "shop/api.py", "shop/keys.py"]),
    "litestar_alchemy": (
        60,
        ["club/app.py", "club/auth.py", "club/controllers.py", "club/keys.py"],
    ),
}


def test_every_application_is_tested() -> None:
    assert existing.names() == list(APPLICATIONS)


# The tests of keys check the migrations as well.
@pytest.mark.parametrize("folders", [["before", "tests"], ["after", "tests", "tests_of_keys"]])
@pytest.mark.parametrize("name", APPLICATIONS)
def test_its_own_tests_pass(name: str, folders: list[str]) -> None:
    folder = existing.EXAMPLES / name
    tree, *tests = [folder / each for each in folders]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "anyio"),
            *("-c", existing.EXAMPLES / "pytest.ini", "--rootdir", folder),
            # The fixtures of `tests` serve the tests of keys as well.
            *("--confcutdir", folder, *tests),
        ],
        cwd=tree,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
