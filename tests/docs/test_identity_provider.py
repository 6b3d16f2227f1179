"""The guides to tokens of others name every row of the table of issuers, with the kinds of its tokens."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tokens.shapes import SHAPES

from msk_auth.tokens.issuers import Provider

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"


def rows_of(guide: str) -> set[tuple[str, str]]:
    table = (
        (GUIDES / guide)
        .read_text("utf-8")
        .partition("| provider | arguments")[2]
        .partition("\n\n")[0]
    )
    return set(re.findall(r"^\| [^|]+ \| `Provider\.(\w+)[^|]*\| (\w+) \|", table, re.MULTILINE))


def test_the_tables_of_the_guides_have_each_provider_and_kind_of_token() -> None:
    rows = rows_of("identity-provider.md") | rows_of("machine-tokens.md")
    issuers = [shape.issuer for shape in SHAPES.values()]
    issuers = [each for each in issuers if each.rules in each.provider.value.tokens]
    assert rows == {(each.provider.name, each.rules.kind) for each in issuers}
    assert rows == {(each.name, rules.kind) for each in Provider for rules in each.value.tokens}
