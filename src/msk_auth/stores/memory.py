"""Keys in the memory of one process: for tests, experiments, and as a model of a store.

The keys are lost when the process ends, and invisible to other processes.
"""

from __future__ import annotations

from msk_auth._async.memory import AsyncMemoryKeyStore
from msk_auth._sync.memory import MemoryKeyStore

__all__ = ["AsyncMemoryKeyStore", "MemoryKeyStore"]
