"""Optional methods of a store: the store itself is asked for them, so that a proxy has those of the store behind it."""

from __future__ import annotations

from typing import Any

import pytest

from msk_auth.core.store import offered


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
