"""The shortest examples of the docs: ten lines, and they protect (design 5)."""

from __future__ import annotations

import logging
import re
import runpy
from collections.abc import Iterator
from datetime import UTC, datetime
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.adapters import ADAPTERS, send

from msk_auth import Owner, local_principal

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.anyio

DOCS = Path(__file__).parents[2] / "docs"
SNIPPETS = DOCS / "snippets"


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    """As before: Litestar sets up logging for the whole process."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.mark.parametrize("name", ADAPTERS)
async def test_ten_lines_protect_a_route(name: str) -> None:
    path = SNIPPETS / f"{name}_minimal.py"
    assert sum(bool(line.strip()) for line in path.read_text("utf-8").splitlines()) <= 10
    names: dict[str, Any] = runpy.run_path(str(path))
    app, authenticator = names["app"], names["auth"].authenticator
    if name == "flask":
        from tests.integrations.flask_app import WsgiBridge

        app = WsgiBridge(app)

    refused = await send(app, "GET", b"/tasks")
    assert (refused.status, refused.json["code"]) == (401, "credentials_missing")

    owner = Owner("ada", frozenset({"tasks:read"}), "ada")
    created = authenticator.create_key(
        local_principal(owner, at=datetime.now(UTC), interactive=True), name="a script"
    )
    if isawaitable(created):
        created = await created
    bearer = [(b"authorization", b"Bearer " + created.value.reveal().encode())]
    answered = await send(app, "GET", b"/tasks", bearer)
    assert (answered.status, answered.json) == (200, ["water the plants"])


def test_the_adapter_of_the_documentation_passes_the_contract(pytester: pytest.Pytester) -> None:
    text = (
        (DOCS / "how-to" / "extend.md").read_text("utf-8").partition("\n## Write an adapter\n")[2]
    )
    block, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    pytester.makepyfile(block)
    outcomes = pytester.runpytest("-q").parseoutcomes()
    assert outcomes.keys() == {"passed"}
    assert outcomes["passed"] > 150
