"""The shortest examples of the docs: ten lines, and they protect (design 5)."""

from __future__ import annotations

import re
import runpy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.adapters import STARLETTE_BASED, send

from msk_auth import Owner, local_principal

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.anyio

DOCS = Path(__file__).parents[2] / "docs"
SNIPPETS = DOCS / "snippets"


@pytest.mark.parametrize("name", STARLETTE_BASED)
async def test_ten_lines_protect_a_route(name: str) -> None:
    path = SNIPPETS / f"{name}_minimal.py"
    assert sum(bool(line.strip()) for line in path.read_text("utf-8").splitlines()) <= 10
    names: dict[str, Any] = runpy.run_path(str(path))
    app, authenticator = names["app"], names["auth"].authenticator

    refused = await send(app, "GET", b"/tasks")
    assert (refused.status, refused.json["code"]) == (401, "credentials_missing")

    owner = Owner("ada", frozenset({"tasks:read"}), "ada")
    created = await authenticator.create_key(
        local_principal(owner, at=datetime.now(UTC), interactive=True), name="a script"
    )
    bearer = [(b"authorization", b"Bearer " + created.value.reveal().encode())]
    async with app.router.lifespan_context(app):
        answered = await send(app, "GET", b"/tasks", bearer)
    assert (answered.status, answered.json) == (200, ["water the plants"])


def test_the_adapter_of_the_documentation_passes_the_contract(pytester: pytest.Pytester) -> None:
    text = (DOCS / "how-to" / "write-an-adapter.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    pytester.makepyfile(blocks[0])
    outcomes = pytester.runpytest("-q").parseoutcomes()
    assert outcomes.keys() == {"passed"}
    assert outcomes["passed"] > 350
