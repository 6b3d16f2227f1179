"""The service's use of the library: the profile of login tokens, the key store, and the authenticator."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from msk_auth import AsyncAuthenticator, Clock, KeyHasher, SigningKey, TokenProfile
from msk_auth.events import CredentialUsed, Event, Refusal
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore

from .accounts.config import MAX_SESSION_LIFETIME, ConfigStore
from .accounts.key_audit import KeyAudit
from .accounts.service_accounts import may_act_for
from .accounts.sessions import Sessions
from .accounts.users import User, Users
from .db import schema
from .db.engine import Database
from .ids import new_id
from .observability import Metrics
from .request_record import current_request
from .secrets_file import Secrets

AUDIENCE: Final = "task-service"
"""The beginning of the `aud` of login tokens; the id of the deployment follows."""
ISSUER: Final = AUDIENCE
"""Not the origin: processes that share a data folder accept each other's logins, even on different ports."""

_PROVEN: Final = {"key_revoked", "key_expired", "owner_disabled", "address_not_allowed"}


def token_profile(keys: Sequence[SigningKey]) -> TokenProfile:
    """The login tokens of this service (JWT).

    Args:
        keys: The keys that sign and verify the tokens.
    """
    return TokenProfile(
        issuer=ISSUER,
        # No deployment's audience: no login is accepted until `Services.join_deployment` has read the id.
        audience=audience_of(new_id("none")),
        keys=keys,
        max_lifetime=MAX_SESSION_LIFETIME,
    )


def audience_of(deployment: str) -> str:
    """The `aud` of the login tokens of a deployment."""
    return f"{AUDIENCE}:{deployment}"


def key_store(db: Database, audit: KeyAudit) -> AsyncSQLAlchemyKeyStore:
    """The store of API keys, in the service's own database.

    Args:
        db: The database.
        audit: Writes an entry in the transaction of each change of a key.
    """
    store = AsyncSQLAlchemyKeyStore(
        db.engine,
        schema.api_keys,
        on_change=audit.on_change,
        # The engine's checkout is the same for every request.
        shares_reads=True,
    )
    db.read_through(store)
    return store


def build_authenticator(
    store: AsyncSQLAlchemyKeyStore,
    tokens: TokenProfile,
    secrets: Secrets,
    clock: Clock,
    *,
    lease: timedelta | None,
    users: Users,
    sessions: Sessions,
    config: ConfigStore,
    metrics: Metrics,
    audit: KeyAudit,
) -> AsyncAuthenticator[User]:
    """The authenticator of all routes and pages.

    Args:
        store: The API keys.
        tokens: The login tokens.
        secrets: The peppers of the keys' digests.
        clock: The clock.
        lease: How long this process may reuse a verification; None reads for each request.
        users: The owners of keys, with their present permissions.
        sessions: The login sessions; the token of an ended session is refused.
        config: Limits keys.
        metrics: Counts refusals.
        audit: Records leaked keys.
    """
    return AsyncAuthenticator(
        store,
        find_owner=users.find_owner,
        tokens=tokens,
        find_session=sessions.find_session,
        may_act_for=may_act_for,
        key_limits=config.key_limits,
        hasher=KeyHasher(secrets.peppers),
        on_event=_Hook(sessions, metrics, audit),
        realm=AUDIENCE,
        clock=clock,
        lease=lease,
    )


@dataclass(frozen=True, slots=True)
class _Hook:
    """The authenticator's hook for events; an event of a request needs only memory.

    Changes of keys are recorded in their own transactions: see :mod:`task_service.accounts.key_audit`.
    """

    sessions: Sessions
    metrics: Metrics
    audit: KeyAudit

    def __call__(self, event: Event) -> Awaitable[None] | None:
        record = current_request.get()
        if isinstance(event, CredentialUsed):
            if record is not None:
                record.principal = event.principal
            if event.principal.session_id is not None:
                self.sessions.seen(event.principal.session_id, event.at)
        elif isinstance(event, Refusal):
            self.metrics.refusals.labels(event.code).inc()
            if record is not None and event.code in _PROVEN:
                record.refused_key_id = event.key_id
        elif event.location is not None:
            return self.audit.on_leak(event, event.location)
        return None
