"""Leaves out what is about a framework that is not installed, and runs an event loop for those that are."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from tests.contract.world import World, make_world

from msk_auth.testing import BackgroundLoop

FRAMEWORKS = {"fastapi", "flask", "litestar", "starlette"}
INSTALLED = {name for name in FRAMEWORKS if find_spec(name) is not None}

collect_ignore_glob = [f"test_{name}*.py" for name in FRAMEWORKS - INSTALLED]
collect_ignore: list[str] = []
if "starlette" not in INSTALLED:
    collect_ignore.append("test_snippets.py")
if find_spec("mcp") is None:
    collect_ignore.append("test_mcp_sdk.py")
if not all(map(find_spec, ("flask_restful", "flask_restx", "flask_smorest"))):
    # Their newest versions raise the version of Flask: they are not beside an old one.
    collect_ignore.append("test_flask_extensions.py")
if "flask" not in INSTALLED:
    collect_ignore.append("test_http.py")
if not INSTALLED - {"flask"}:
    collect_ignore.append("test_websockets.py")
if not INSTALLED:
    collect_ignore += [
        "test_cases.py",
        "test_failures.py",
        "test_key_lifecycle.py",
        "test_leaks.py",
        "test_others_errors.py",
        "test_streams.py",
    ]
if INSTALLED != FRAMEWORKS:
    # These need SQLAlchemy as well.
    collect_ignore += [
        "test_fastapi_session.py",
        "test_servers.py",
        "test_session.py",
        "test_way.py",
    ]


@pytest.fixture
def world() -> World:
    return make_world()


@pytest.fixture(scope="module")
def loop() -> Iterator[BackgroundLoop]:
    with BackgroundLoop() as loop:
        yield loop


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out single tests of a framework that is not installed: a skipped one would fail, for nothing may be skipped."""
    if INSTALLED == FRAMEWORKS:
        return
    without = [item for item in items if _is_without_framework(item)]
    config.hook.pytest_deselected(items=without)
    items[:] = [item for item in items if item not in without]


def _is_without_framework(item: pytest.Item) -> bool:
    return any(mark.args[:1] == (True,) for mark in item.iter_markers("skipif")) or any(
        "empty parameter set" in mark.kwargs.get("reason", "") for mark in item.iter_markers("skip")
    )
