"""The store that the documentation prints keeps every promise of a store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "extend.md"


def test_it_passes_the_contract(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # The contract needs no plugins, and importing them anew takes longer than its tests.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    block, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    pytester.makepyfile(block)
    outcomes = pytester.runpytest("-q").parseoutcomes()
    # It records no leases and no activity, lists one owner's keys and announces no end: tests of what a store may have are left
    # out.
    assert outcomes.pop("skipped", 0) <= 24
    assert outcomes.keys() == {"passed"}
    assert outcomes["passed"] > 40
