"""The structure that `CONTRIBUTING.md` promises, held by the test run."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVICE = ROOT / "examples" / "task_service"

# Everything that an application may import, and so everything that semantic versioning covers.
PUBLIC_MODULES = frozenset(
    {
        "msk_auth",
        "msk_auth.argon2",
        "msk_auth.errors",
        "msk_auth.events",
        "msk_auth.integrations",
        "msk_auth.integrations.fastapi",
        "msk_auth.integrations.flask",
        "msk_auth.integrations.litestar",
        "msk_auth.integrations.mcp",
        "msk_auth.integrations.starlette",
        "msk_auth.keys",
        "msk_auth.redaction",
        "msk_auth.stores",
        "msk_auth.stores.memory",
        "msk_auth.stores.sqlalchemy",
        "msk_auth.stores.sqlalchemy.migrations",
        "msk_auth.testing",
        "msk_auth.tokens",
        "msk_auth.tokens.issuers",
    }
)

FRAMEWORKS = frozenset({"fastapi", "fastmcp", "flask", "litestar", "mcp", "starlette"})
OPTIONAL = FRAMEWORKS | {"alembic", "argon2", "pydantic", "sqlalchemy"}


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement loads in a fresh interpreter, and their packages."""
    code = (
        f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(*(set(sys.modules) - before))"
    )
    # As in `pyproject.toml`: Litestar imports advanced-alchemy where it is installed, which uses a deprecated decorator.
    ignored = "ignore:The declarative_mixin decorator:DeprecationWarning"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-W", ignored, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(result.stdout.split())


def test_the_library_works_where_no_optional_dependency_is_installed() -> None:
    # `None` in sys.modules makes every later import of that name fail.
    missing = "".join(f"sys.modules[{name!r}] = None\n" for name in sorted(OPTIONAL))
    assert "msk_auth" in loaded_by(f"{missing}from msk_auth import *")


# What no application pays for that does not use it. An event loop takes as long to load as everything else of the library.
NOT_LOADED = {
    *("jwt", "cryptography", "argon2", "sqlalchemy", "alembic", "pydantic", "anyio"),
    *("fastapi", "starlette", "flask", "litestar", "werkzeug"),
    *("asyncio", "concurrent.futures", "ssl", "msk_auth.batching"),
    *("msk_auth.stores", "msk_auth.integrations", "msk_auth.testing"),
    *("msk_auth.argon2", "msk_auth.cli"),
}


def test_importing_loads_nothing_optional() -> None:
    loaded = loaded_by("import msk_auth")
    assert "msk_auth" in loaded
    assert NOT_LOADED & loaded == set()


def test_the_command_loads_no_framework_and_no_pytest() -> None:
    loaded = loaded_by("import msk_auth.cli")
    assert "msk_auth.cli" in loaded
    assert loaded & {*FRAMEWORKS, "pytest", "sqlalchemy", "cryptography"} == set()


@pytest.mark.parametrize(
    ("adapter", "own"),
    [
        ("fastapi", {"fastapi", "starlette"}),
        ("flask", {"flask"}),
        ("litestar", {"litestar"}),
        ("mcp", set()),
        ("starlette", {"starlette"}),
    ],
)
def test_an_adapter_loads_its_own_framework_only(adapter: str, own: set[str]) -> None:
    pytest.importorskip(adapter)
    # Litestar imports advanced-alchemy, and so SQLAlchemy, where it is installed.
    without = "sys.modules['advanced_alchemy'] = None"
    loaded = loaded_by(f"{without}\nimport msk_auth.integrations.{adapter}")
    assert loaded & FRAMEWORKS == own
    assert loaded & {"alembic", "argon2", "sqlalchemy"} == set()


def test_only_one_folder_of_http_awaits() -> None:
    folder = ROOT / "src" / "msk_auth" / "http"
    files = sorted(set(folder.rglob("*.py")) - set(folder.glob("_async/*.py")))
    assert files
    waiting = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert [
        f"{path.name}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, waiting)
    ] == []


def foreign_names(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of everything that a file takes from `msk_auth`."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] == "msk_auth":
                for alias in node.names:
                    yield node.lineno, module, alias.name
            case ast.Import():
                for alias in node.names:
                    if alias.name.split(".")[0] == "msk_auth":
                        # A module taken as a whole hides which names are used.
                        yield node.lineno, alias.name, "(the module itself)"


def is_public(module: str, name: str) -> bool:
    # A test calls the command msk-auth in its own process.
    if f"{module}.{name}" in {*PUBLIC_MODULES, "msk_auth.cli.main"}:
        return True
    return module in PUBLIC_MODULES and name in importlib.import_module(module).__all__


def test_the_service_uses_only_public_names_of_the_library() -> None:
    files = sorted(SERVICE.rglob("*.py"))
    assert files
    assert [
        f"{path.relative_to(ROOT)}:{line}: {module}.{name}"
        for path in files
        for line, module, name in foreign_names(ast.parse(path.read_text("utf-8")))
        if not is_public(module, name)
    ] == []


# A host of an index pins its readers to one place; a path of one machine works on no other.
FORBIDDEN_TEXT = re.compile(
    r"""
      \b(?: pypi\.org | pythonhosted\.org | registry\.npmjs | docker\.io | ghcr\.io )
    | (?<![\w.$}/-]) / (?: home | root | Users | work ) / \w
    """,
    re.VERBOSE,
)


def tracked_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def test_no_file_names_a_registry_host_or_a_path_of_one_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked_files()
        if path.is_file()
        for match in FORBIDDEN_TEXT.finditer(path.read_bytes().decode("utf-8", "ignore"))
    ]
    assert found == []


# "Which files a change touches" in CONTRIBUTING.md.

CHANGE = re.compile(
    r"^### (.+)\n\nExample: (.+?)\.(?: Complete in (.+)\.)?\n\n((?:[0-9]+\. .+\n)+)", re.MULTILINE
)
LISTED = re.compile(r"^[0-9]+\. `([^`]+)`: ", re.MULTILINE)
CODE = re.compile("`(.+?)`")


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
CHANGES = CONTRIBUTING.partition("## Which files a change touches\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("example", "complete", "steps"),
    [pytest.param(*rest, id=name) for name, *rest in CHANGE.findall(CHANGES)],
)
def test_a_list_of_files_names_those_that_its_example_touches(
    example: str, complete: str, steps: str
) -> None:
    names, listed = CODE.findall(example), LISTED.findall(steps)

    def mentions(path: Path) -> bool:
        return path.is_file() and any(name.encode() in path.read_bytes() for name in names)

    assert listed
    assert [path for path in listed if not mentions(ROOT / path)] == []
    for folder in CODE.findall(complete):
        found = {
            str(path.relative_to(ROOT))
            for path in (ROOT / folder).rglob("*")
            if "__pycache__" not in path.parts and mentions(path)
        }
        assert found - set(listed) == set()
