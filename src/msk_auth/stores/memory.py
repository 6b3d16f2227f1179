"""Keys in the memory of one process: for tests, experiments, and as the model of what a store does.

Everything is gone when the process ends, and no other process sees any of it.
"""

from __future__ import annotations

from msk_auth._async.memory import AsyncMemoryKeyStore
from msk_auth._sync.memory import MemoryKeyStore

__all__ = ["AsyncMemoryKeyStore", "MemoryKeyStore"]
