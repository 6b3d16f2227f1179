"""For the tests of applications, and of your own stores: needs pytest.

One rule: a test runs the production code; only the clock and the digests of imported keys are replaced.

- :class:`FrozenClock` replaces the machine's clock.
- :func:`login_headers`, :func:`key_headers` and :func:`async_key_headers` return the headers of a login or a key.
- :func:`audit_routes` fails if a route of an application declares no policy.
- :class:`StoreContract` tests your own store, an asynchronous store on a :class:`BackgroundLoop`;
  :class:`ChangeRecorder` is its hook for the store.

A digest of the library's own keys takes microseconds. For imported keys use the cheap profile in tests:
`KeyHasher(slow=Argon2Digest("cheap"))`.
"""

from __future__ import annotations

import pytest

from msk_auth._route_audit import audit_routes, list_routes

# Before the import, so that a failing contract shows the compared values.
pytest.register_assert_rewrite("msk_auth.testing._store_contract")

from ._application import (  # noqa: E402 - see above
    FrozenClock,
    async_key_headers,
    key_headers,
    login_headers,
)
from ._store_contract import (  # noqa: E402 - see above
    BackgroundLoop,
    ChangeRecorder,
    StoreContract,
)

__all__ = [
    "BackgroundLoop",
    "ChangeRecorder",
    "FrozenClock",
    "StoreContract",
    "async_key_headers",
    "audit_routes",
    "key_headers",
    "list_routes",
    "login_headers",
]
