"""What `tools/generate_sync.py` makes of code that awaits. `make check` compares the generated half."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "generate_sync.py"
spec = importlib.util.spec_from_file_location("generate_sync", SCRIPT)
assert spec is not None
assert spec.loader is not None
generate_sync = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate_sync)


@pytest.mark.parametrize(
    ("awaits", "blocks"),
    [
        ("async def f():\n    return await g()\n", "def f():\n    return g()\n"),
        ("async with a:\n    await b\n", "with a:\n    b\n"),
        ("def f() -> Awaitable[list[int]]: ...\n", "def f() -> list[int]: ...\n"),
        ("f: Callable[[str], MaybeAwaitable[T]]\n", "f: Callable[[str], T]\n"),
        ("from msk_auth._async.x import AsyncX\n", "from msk_auth._sync.x import X\n"),
        ("await clock.async_sleep(1)\n", "clock.sleep(1)\n"),
        ("'AsyncX' # of AsyncX\n", "'X' # of X\n"),
        ("asyncio, is_async, awaited = 1, 2, 3\n", "asyncio, is_async, awaited = 1, 2, 3\n"),
        ("a = 1\nclass B:  # async only\n    c = 2\n\n\nd = 3\n", "a = 1\n\n\nd = 3\n"),
        ("@awaited  # async only\nasync def f(): ...\n", "def f(): ...\n"),
    ],
)  # fmt: skip
def test_what_awaits_becomes_what_blocks(awaits: str, blocks: str) -> None:
    assert generate_sync.blocking(awaits) == blocks


def test_every_phrase_is_found() -> None:
    """A docstring that was rewritten would say in the blocking half what only the awaiting one does."""
    folders = [SCRIPT.parents[1] / folder for folder in generate_sync.SOURCES]
    sources = "".join(path.read_text("utf-8") for each in folders for path in each.glob("*.py"))
    assert [phrase for phrase in generate_sync.PHRASES if phrase not in sources] == []
