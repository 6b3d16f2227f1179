"""Stores of keys: in memory for tests and experiments, in a database for everything else.

Every store here implements :class:`~msk_auth.stores.KeyStore` or :class:`~msk_auth.stores.AsyncKeyStore` and passes
`msk_auth.testing.StoreContract`.

One rule: a store keeps records and limits exactly, and does not decide who may do what.
"""

from __future__ import annotations

from msk_auth._async.store import AsyncKeyStore
from msk_auth._sync.store import KeyStore
from msk_auth.core.model import ExpiryQuery, KeyQuery
from msk_auth.core.store import KeyChange, RecordedLease

__all__ = [
    "AsyncKeyStore",
    "ExpiryQuery",
    "KeyChange",
    "KeyQuery",
    "KeyStore",
    "RecordedLease",
]
