"""Generate each folder `_sync/`, which blocks, from the folder `_async/` beside it, which awaits.

    python tools/generate_sync.py            write the blocking twins
    python tools/generate_sync.py --check    only compare them, as `make check` does

`async` and `await` go, `Awaitable[T]` becomes `T`, and names lose their `Async`. A statement or a decorator that ends its first
line with `# async only` is left out. What truly differs is written by hand in each half, under the same names.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Each source, with its modules that both halves have by hand or that only an event loop needs.
SOURCES = {
    "src/msk_auth/_async": {"primitives", "watch"},
    "src/msk_auth/http/_async": set(),
    "src/msk_auth/stores/sqlalchemy/_async": {"running"},
}
FIRST_LINE = "# Generated from {} by tools/generate_sync.py: change that, and run this.\n"

WORDS = {
    r"\bAsync(?=[A-Z])": "",
    r"\b_async\b": "_sync",
    r"\basync_(?=[a-z])": "",
    r"\bAbstractAsync(?=[A-Z])": "Abstract",
    r"\baclose\b": "close",
}
# In docstrings and comments, besides the words.
PHRASES = {
    "A watch, to use once. `async with watch:` around the work raises the refusal when access ends; it cancels the\n"
    "            work first, like `asyncio.timeout`, so the block must not contain a `yield`. `watch.stream(source)` yields the\n"
    "            items of an asynchronous iterable until access ends, and `await watch.wait()` then returns the refusal.\n"
    "            `watch.refusal` is None while access lasts.": "A watch, to use in one thread. `watch.check()` returns while access lasts, and raises the refusal afterwards:\n"
    "            call it before each item that you send, and at least once a second. `watch.stream(source)` does so for the items\n"
    "            of an iterable. `watch.refusal` is None while access lasts.",
    "async with ": "with ",
    "async def ": "def ",
    "return await ": "return ",
    "= await ": "= ",
    "on an asyncio event loop.": "blocking. Safe to use from several threads.",
    "awaited on an event loop.": "called from any thread.",
    "writes times of last use once a minute, and when it is closed::": "writes times of last use when it is closed::",
    "    Each event loop and each forked child that uses the authenticator must open and close it.\n\n": "",
    "            A function without `async` runs on the event loop, so it must not block.\n": "",
    "            An awaitable result is awaited.\n": "",
    "\n        Close a store on each event loop that uses it.\n": "",
    "        shares_reads: True if concurrent look-ups of keys may be one statement, which then runs outside of any\n"
    "            request. None means: unless the engine's pool has a listener for `checkout`, which may prepare each connection\n"
    "            for the request that uses it, for the schema of its tenant for example.\n": "",
    "Returns the owner for a user, without the user object. Not async.": "Returns the owner for a user, without the user object.",
    "A function as for `logins`. It may be async.": "A function as for `logins`, not async.",
    "or an argument is not a function, or\n            `owner_of` is async.": "or an argument is not a function or is\n            async.",
    "All watches of an event loop share their reads: one per second for each key, session and owner, and one more for\n"
    "        new watches, at most ten times a second.": "A watch reads its key or session, and its owner, once a second.",
}


def blocking(source: str) -> str:
    """The twin of a module."""
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]

    def offset(row: int, column: int) -> int:
        return starts[row - 1] + column

    changes: list[tuple[int, int, str]] = []
    left_out = [range(first, last + 1) for first, last in _async_only(source)]
    changes += [(starts[rows.start - 1], starts[rows.stop - 1], "") for rows in left_out]
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if not any(token.start[0] in rows for rows in left_out)
    ]
    for index, token in enumerate(tokens):
        begin, end = offset(*token.start), offset(*token.end)
        if token.string in {"async", "await"}:
            changes.append((begin, offset(*tokens[index + 1].start), ""))
        elif token.string in {"Awaitable", "MaybeAwaitable"} and tokens[index + 1].string == "[":
            changes.append((begin, offset(*tokens[index + 1].end), ""))
            closing = _closing_bracket(tokens, index + 1)
            changes.append((offset(*closing.start), offset(*closing.end), ""))
        elif token.type in {tokenize.NAME, tokenize.STRING, tokenize.COMMENT}:
            changes.append((begin, end, _reworded(token)))
    for begin, end, text in sorted(changes, reverse=True):
        source = source[:begin] + text + source[end:]
    return source


def _async_only(source: str) -> Iterator[tuple[int, int]]:
    """The first and the last line of each statement and decorator that only an event loop needs."""
    marked = [n for n, line in enumerate(source.splitlines(), 1) if line.endswith("# async only")]
    ends = {
        node.lineno: node.end_lineno or node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt)
    }
    return ((line, ends.get(line, line)) for line in marked)


def _closing_bracket(tokens: list[tokenize.TokenInfo], opening: int) -> tokenize.TokenInfo:
    depth = 0
    for token in tokens[opening:]:
        depth += (token.string == "[") - (token.string == "]")
        if depth == 0:
            return token
    raise ValueError("a bracket is not closed")


def _reworded(token: tokenize.TokenInfo) -> str:
    text = token.string
    for word, twin in WORDS.items():
        text = re.sub(word, twin, text)
    if token.type != tokenize.NAME:
        for phrase, twin in PHRASES.items():
            text = text.replace(phrase, twin)
    return text


def _formatted(text: str, path: Path) -> str:
    fix = ["check", "--quiet", "--fix-only", "--select", "F401,I"]
    for command in (fix, ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"]
        done = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True)  # noqa: S603
        text = done.stdout
    return text


def _sources() -> list[Path]:
    return [
        path
        for folder, by_hand in SOURCES.items()
        for path in sorted((ROOT / folder).glob("*.py"))
        if path.stem not in {"__init__", *by_hand}
    ]


def main(arguments: list[str]) -> None:
    """Write the twins, or compare them."""
    wrong: list[str] = []
    for path in _sources():
        twin = path.parent.with_name("_sync") / path.name
        first = FIRST_LINE.format(path.relative_to(ROOT))
        text = _formatted(first + blocking(path.read_text("utf-8")), twin)
        if "--check" not in arguments:
            twin.write_text(text, "utf-8")
        elif not twin.exists() or twin.read_text("utf-8") != text:
            wrong.append(f"{twin} is not as it is generated. Run: python tools/generate_sync.py")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
