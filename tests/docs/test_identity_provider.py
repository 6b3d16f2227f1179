"""The table of the guide is that of the presets: which token each takes, and on what evidence it is a person's."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from tests.tokens.shapes import SHAPES

from msk_auth.tokens import issuers
from msk_auth.tokens.issuers import ExternalIssuer

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "identity-provider.md"


def call_of(issuer: ExternalIssuer) -> str:
    """How the guide writes the preset: its positional arguments, and those without a default."""
    arguments: list[str] = []
    for name, parameter in inspect.signature(type(issuer)).parameters.items():
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            arguments.append(name)
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            arguments.append(f"{name}=…")
    if issuer.preset.token == "id" and "token" in inspect.signature(type(issuer)).parameters:
        arguments.append('token="id"')
    return f"`{type(issuer).__name__}({', '.join(arguments)})`"


def test_the_table_of_the_guide_is_that_of_the_presets() -> None:
    page = GUIDE.read_text("utf-8")
    table = page.partition("| provider | preset |")[2].partition("\n\n")[0]
    rows = {tuple(map(str.strip, line.split(" | ")[1:])) for line in table.splitlines()[2:]}
    presets = [shape.issuer for shape in SHAPES.values()]
    assert {type(each).__name__ for each in presets} == {
        name
        for name, kind in vars(issuers).items()
        if isinstance(kind, type)
        and issubclass(kind, ExternalIssuer)
        and kind is not ExternalIssuer
    }
    assert rows == {
        (call_of(each), each.preset.token, f"{each.preset.evidence} |") for each in presets
    }


def test_the_guide_shows_every_other_provider_that_is_tested() -> None:
    page = GUIDE.read_text("utf-8").lower()
    named = {re.sub(r", .*", "", name).lower() for name in SHAPES}
    others = {"zitadel", "hydra", "authentik", "fusionauth", "b2c", "logto", "workos", "descope"}
    assert others <= named
    assert {name for name in others if name not in page} == set()
