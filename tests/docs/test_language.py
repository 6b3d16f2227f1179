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
        for folder in (
            "docs",
            "src",
            "benchmarks",
            "examples/task_service/src",
            "examples/task_service/deploy",
        )
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


def sentences(markdown: str) -> list[str]:
    """The prose of a page: without blocks, tables, headings and addresses."""
    text = re.sub(r"^([ \t]*)```.*?^\1```", "\n\n", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\s*(\||#|<|:::|!|===|\?\?\?).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "", text).replace("[", "")
    # Each item of a list is a paragraph.
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", re.sub(r"`[^`]*`", "code", text))
    return [
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`c])", " ".join(paragraph.split()))
        if sentence
    ]


def test_what_a_sentence_is() -> None:
    page = "# A title\n\nOne `f(a. b)` thing.\nAnother [one](x.md).\n\n- An item\n- Two. Three\n\n```\nno\n```\n| a |\n"
    assert sentences(page) == ["One code thing.", "Another one.", "- An item", "Two.", "Three"]


def test_sentences_are_short() -> None:
    """At most one in fifty has more than 30 words: it has to be read twice."""
    found = [
        (path.relative_to(ROOT).as_posix(), sentence)
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        for sentence in sentences(path.read_text("utf-8"))
    ]
    long = [each for each in found if len(each[1].split()) > 30]
    assert len(long) <= len(found) / 50, long
