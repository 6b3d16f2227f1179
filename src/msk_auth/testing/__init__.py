"""For the tests of applications and of other people's stores: needs pytest.

- :class:`FrozenClock` takes the place of the machine's clock.
- :func:`audit_routes` demands that every route of an application says whom it is for.
- :class:`StoreContract` and :class:`AsyncStoreContract` check a store of your own.
"""

from __future__ import annotations

from msk_auth._audit.audit import audit_routes, list_routes
from msk_auth._audit.report import Access, AuditedRoute, RouteAuditFailed, RouteReport

from ._clock import FrozenClock
from ._loop import BackgroundLoop
from ._store_contract import AsyncStoreContract, StoreContract

__all__ = [
    "Access",
    "AsyncStoreContract",
    "AuditedRoute",
    "BackgroundLoop",
    "FrozenClock",
    "RouteAuditFailed",
    "RouteReport",
    "StoreContract",
    "audit_routes",
    "list_routes",
]
