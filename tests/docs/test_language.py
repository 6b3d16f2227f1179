"""The words of the documentation and the code: those that the first version used in a sense of its own do not come back."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Each hides who acts, or stands for a term of the field: name the caller, the client, the owner, the operator.
OLD_WORDS = re.compile(
    r"\b(whoever|somebody|nobody|anybody|one who|narrowing|doorbell|leash|witnessed|sighting|hang up|tidy|untidy)\b",
    re.IGNORECASE,
)


def test_the_old_words_do_not_come_back() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), match[0].lower())
        for folder in ("docs", "src", "examples/task_service/src", "examples/task_service/deploy")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".md", ".py", ".html", ".js", ".css", ".conf", ".service"}
        for match in OLD_WORDS.finditer(path.read_text("utf-8"))
    }
    found |= {
        (path.name, match[0].lower())
        for path in ROOT.glob("*.md")
        for match in OLD_WORDS.finditer(path.read_text("utf-8"))
    }
    assert found == set()
