"""For the tests of applications and of other people's stores: needs pytest.

- :class:`FrozenClock` takes the place of the machine's clock.
- :class:`StoreContract` and :class:`AsyncStoreContract` check a store of your own.
"""

from __future__ import annotations

from ._clock import FrozenClock
from ._loop import BackgroundLoop
from ._store_contract import AsyncStoreContract, StoreContract

__all__ = ["AsyncStoreContract", "BackgroundLoop", "FrozenClock", "StoreContract"]
