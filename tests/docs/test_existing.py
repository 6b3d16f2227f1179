"""The applications of the guides for those that exist: their own tests pass before and after, unchanged."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.tools import existing
from tests.prefork import Prefork

pytestmark = pytest.mark.slow
DOCS = Path(__file__).parents[2] / "docs"

# From the application to the lines that the library may take.
APPLICATIONS = {
    "fastapi_async": 50,
    "fastapi_sqlmodel": 45,
    "flask_login": 35,
    "litestar_alchemy": 30,
    "litestar_sessions": 40,
}


def test_every_application_is_tested() -> None:
    assert existing.names() == list(APPLICATIONS)


def test_the_guide_names_the_lowest_version_of_each_package() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    text = "\n".join([*project["dependencies"], *itertools.chain(*extras)])
    lowest = dict(re.findall(r"^(\w+)(?:\[\w+\])?>=([\d.]+)", text, re.MULTILINE))
    guide = (DOCS / "how-to" / "adopt.md").read_text("utf-8")
    named = dict(re.findall(r"^\| (\w+) \| ([\d.]+)", guide, re.MULTILINE))
    assert named.pop("Python") == project["requires-python"].removeprefix(">=")
    assert {package.lower(): version for package, version in named.items()} == {
        package: version for package, version in lowest.items() if package != "mcp"
    }


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


# A command of an installed package, as people type it.
COMMAND = """
import sys
from importlib.metadata import entry_points
(command,) = entry_points(group="console_scripts", name=sys.argv[0])
sys.exit(command.load()())
"""
PYTEST = [
    *("pytest", "-q", "-p", "no:cacheprovider", "-p", "anyio.pytest_plugin"),
    *("-c", str(existing.EXAMPLES / "pytest.ini"), "--rootdir", "."),
]


@pytest.mark.faults
@pytest.mark.parametrize("name", APPLICATIONS)
def test_its_own_tests_pass_before(name: str, loaded: Prefork, tmp_path: Path) -> None:
    folder = tmp_path / name
    existing.copy(name, folder)
    loaded.run(folder, tmp_path / "output.txt", COMMAND, *PYTEST, "tests")


@pytest.mark.parametrize("name", APPLICATIONS)
def test_its_own_tests_and_those_of_keys_pass_with_the_patch(
    name: str, loaded: Prefork, tmp_path: Path
) -> None:
    folder, output = tmp_path / name, tmp_path / "output.txt"
    existing.copy(name, folder)
    existing.adopt(folder)
    commands = migration_commands(name)
    # Autogenerate compares the models with a database that is up to date: the last command is done first, too.
    for command in [*commands[-1:], *commands]:
        loaded.run(folder, output, COMMAND, *command)
    loaded.run(folder, output, COMMAND, *PYTEST, "tests", "tests_of_keys")


def migration_commands(name: str) -> list[list[str]]:
    """What the guide of an application types to make the migration, and to run it; nothing where it creates its tables."""
    guide = (DOCS / "how-to" / "adopt.md").read_text("utf-8")
    section = guide.partition(f"<!-- begin: existing-{name.replace('_', '-')} -->")[2]
    section = section.partition("\n## ")[0]
    block = section.partition("```bash\n")[2].partition("```")[0]
    commands = [shlex.split(line) for line in block.splitlines()]
    for command in commands:
        if command[0] == "litestar":
            # Nobody answers.
            command.append("--no-prompt")
    return commands


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_library_takes_no_more_lines_than_it_may(name: str) -> None:
    assert 0 < existing.added(name) <= APPLICATIONS[name]
