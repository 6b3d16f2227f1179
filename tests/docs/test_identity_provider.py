"""The guide to identity providers names every row of the table of issuers, with the kinds of its tokens."""

from __future__ import annotations

import re
from pathlib import Path

from tests.tokens.shapes import SHAPES

from msk_auth.tokens.issuers import Provider

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "identity-provider.md"


def test_the_table_of_the_guide_has_each_provider_and_kind_of_token() -> None:
    table = GUIDE.read_text("utf-8").partition("| provider | arguments")[2].partition("\n\n")[0]
    rows = set(re.findall(r"^\| [^|]+ \| `Provider\.(\w+)[^|]*\| (\w+) \|", table, re.MULTILINE))
    issuers = [shape.issuer for shape in SHAPES.values()]
    assert rows == {(each.provider.name, each.rules.kind) for each in issuers}
    assert rows == {(each.name, rules.kind) for each in Provider for rules in each.value.tokens}
