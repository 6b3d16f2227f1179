"""What stores share: optional methods, which a proxy has from the store behind it, and the hook of each change."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from msk_auth.core.store import call_on_change, offered, require_change
from msk_auth.errors import ConfigurationError


class Store:
    withdrawn = None
    constant = "no method"

    def find(self) -> str:
        return "found"


class Proxy:
    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("store", [Store(), Proxy(Store())], ids=["store", "proxy"])
def test_a_store_offers_what_can_be_called(store: object) -> None:
    assert offered(store, "find")() == "found"
    for name in ("withdrawn", "constant", "missing"):
        assert offered(store, name) is None


def test_a_change_must_be_given() -> None:
    def change(record: object) -> list[Any]:
        return []

    assert require_change(change) is change
    with pytest.raises(ConfigurationError, match="Pass change="):
        require_change(None)


def test_the_hook_is_called_for_each_event_with_the_connection() -> None:
    called: list[tuple[object, object]] = []
    events: Any = ["first", "second"]
    call_on_change(lambda *given: called.append(given), "connection", events)
    assert called == [("connection", "first"), ("connection", "second")]


class Awaitable:
    """Something to await that is no coroutine, and cannot be closed."""

    def __await__(self) -> Any:
        return iter(())


@pytest.mark.parametrize("answer", ["coroutine", "other"])
def test_a_hook_that_has_to_be_awaited_is_refused(answer: str) -> None:
    async def hook(_connection: object, _event: object) -> None:
        return None

    events: Any = ["only"]
    with pytest.raises(ConfigurationError, match="on_change is async"):
        # A coroutine that was left open would be a warning, and so an error.
        call_on_change(hook if answer == "coroutine" else lambda *_: Awaitable(), None, events)
    gc.collect()
