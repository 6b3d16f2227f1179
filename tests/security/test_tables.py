"""The tables of attacks, faults and guarantees in `README.md` name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_named_test_exists() -> None:
    text = (Path(__file__).parent / "README.md").read_text("utf-8")
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", text)
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).exists() or f"def {name}(" not in (ROOT / path).read_text("utf-8")
    ]
    assert named
    assert missing == []
