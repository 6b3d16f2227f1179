"""For the tests of applications, and of stores of your own: needs pytest.

One rule: a test goes through the code that runs in production; only the clock and the digests of imported keys are replaced.

- :class:`FrozenClock` replaces the machine's clock.
- :func:`login_headers`, :func:`key_headers` and :func:`async_key_headers` return the headers of a login or a key.
- :func:`audit_routes` fails if a route of an application declares no policy.
- :class:`StoreContract` tests a store of your own, an asynchronous one on a :class:`BackgroundLoop`;
  :class:`ChangeRecorder` is the hook that it passes to the store.

A digest of a key that the library made takes microseconds. For imported keys use the cheap profile in tests:
`KeyHasher(slow=Argon2Digest("cheap"))`.
"""

from __future__ import annotations

import pytest

from msk_auth._route_audit import audit_routes, list_routes

# Before they are imported: a contract that fails then shows the values it compared.
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
