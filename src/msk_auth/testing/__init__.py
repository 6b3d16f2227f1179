"""For the tests of applications, and of stores and adapters of your own: needs pytest.

One rule: a test goes through the code that runs in production; only the clock and the digests of imported keys are replaced.

- :class:`FrozenClock` takes the place of the machine's clock.
- :func:`login_headers`, :func:`key_headers` and :func:`async_key_headers` sign a principal in.
- :func:`audit_routes` demands that every route of an application says whom it is for.
- :class:`StoreContract` and :class:`AsyncStoreContract` check a store of your own; :class:`ChangeRecorder` and
  :class:`AsyncChangeRecorder` are the hooks that they hand to it.
- :class:`AdapterContract`, :class:`StreamContract` and :class:`WebSocketContract` check an adapter of your own; their
  application and world are in :mod:`msk_auth.testing.adapter`.

Digests of keys that the library makes cost microseconds, in tests as well. For imported keys there is a cheap profile:
`KeyHasher(slow=Argon2Digest("cheap"))`.
"""

from __future__ import annotations

import pytest

from msk_auth._route_audit.audit import audit_routes, list_routes
from msk_auth._route_audit.report import Access, AuditedRoute, RouteAuditFailed, RouteReport

# Before they are imported: a contract that fails then shows the values it compared.
pytest.register_assert_rewrite(
    "msk_auth.testing._adapter_contract",
    "msk_auth.testing._store_contract",
    "msk_auth.testing._stream_contract",
    "msk_auth.testing._websocket_contract",
)

from ._adapter_contract import AdapterContract  # noqa: E402 - see above
from ._clock import FrozenClock  # noqa: E402
from ._loop import BackgroundLoop  # noqa: E402
from ._sign_in import async_key_headers, key_headers, login_headers  # noqa: E402
from ._store_contract import (  # noqa: E402
    AsyncChangeRecorder,
    AsyncStoreContract,
    ChangeRecorder,
    StoreContract,
)
from ._stream_contract import StreamContract  # noqa: E402
from ._websocket_contract import WebSocketContract  # noqa: E402

__all__ = [
    "Access",
    "AdapterContract",
    "AsyncChangeRecorder",
    "AsyncStoreContract",
    "AuditedRoute",
    "BackgroundLoop",
    "ChangeRecorder",
    "FrozenClock",
    "RouteAuditFailed",
    "RouteReport",
    "StoreContract",
    "StreamContract",
    "WebSocketContract",
    "async_key_headers",
    "audit_routes",
    "key_headers",
    "list_routes",
    "login_headers",
]
