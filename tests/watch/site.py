"""People, keys and sessions that a test can change, around an authenticator of either kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.core.support import ANN, NOW, StubIssuer, external_token, profile, token

from msk_auth import (
    ApiKey,
    AsyncAuthenticator,
    Authenticator,
    CredentialKind,
    ExternalIdentity,
    Owner,
    Principal,
    Session,
    local_principal,
)
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.testing import FrozenClock

SECOND = timedelta(seconds=1)
SHORT = timedelta(milliseconds=5)
PERMISSIONS = frozenset({"tasks:read", "tasks:run"})


class Site:
    """One world for both kinds of authenticator.

    Attributes:
        reads: How often each key, session and owner was looked up, and each batch of keys.
        broken: Raised by every look-up while it is set.
    """

    def __init__(self) -> None:
        self.clock = FrozenClock(NOW)
        self.owners: dict[str, Owner[str]] = {
            name: Owner(name, PERMISSIONS, name) for name in ("ann", "bob")
        }
        self.sessions = {"s1": Session("s1", "ann")}
        self.identities = {ANN.subject: "ann"}
        self.reads: Counter[str] = Counter()
        self.broken: Exception | None = None
        self.store = _Store(self)
        self.settings: dict[str, Any] = {
            "tokens": profile(),
            "issuers": [StubIssuer()],
            "clock": self.clock,
        }
        self.blocking = Authenticator(
            self.store,
            find_owner=self.find_owner,
            find_session=self.find_session,
            find_external_owner=self.find_external_owner,
            **self.settings,
        )

    def awaiting(self, **options: Any) -> AsyncAuthenticator[str]:
        """One with short intervals, over the same keys."""

        async def find_owner(owner_id: str) -> Owner[str] | None:
            return self.find_owner(owner_id)

        async def find_session(session_id: str) -> Session | None:
            return self.find_session(session_id)

        async def find_external_owner(identity: ExternalIdentity) -> Owner[str] | None:
            return self.find_external_owner(identity)

        settings = {
            "find_owner": find_owner,
            "find_session": find_session,
            "find_external_owner": find_external_owner,
            "watch_interval": SHORT,
            **self.settings,
            **options,
        }
        store = settings.pop("store", None) or _AsyncStore(self.store)
        return AsyncAuthenticator(store, **settings)

    def find_owner(self, owner_id: str) -> Owner[str] | None:
        self.look_up(f"owner {owner_id}")
        return self.owners.get(owner_id)

    def find_session(self, session_id: str) -> Session | None:
        self.look_up(f"session {session_id}")
        return self.sessions.get(session_id)

    def find_external_owner(self, identity: ExternalIdentity) -> Owner[str] | None:
        return self.find_owner(self.identities.get(identity.subject, "no-owner"))

    def look_up(self, what: str) -> None:
        self.reads[what] += 1
        if self.broken is not None:
            raise self.broken

    def key(self, owner_id: str = "ann", **options: Any) -> Principal[str]:
        """The principal of a new key."""
        maker = local_principal(self.owners[owner_id], at=self.clock.now(), interactive=True)
        created = self.blocking.create_key(maker, name="a", **options)
        principal = self.blocking.authenticate([f"Bearer {created.value.reveal()}"])
        self.reads.clear()
        return principal

    def admitted(self, kind: str) -> Principal[str]:
        """The principal of a key that is good for a day, or of a login."""
        if kind == "key":
            return self.key(lifetime=timedelta(days=1))
        return self.login(token() if kind == "login" else external_token())

    def login(self, credential: str | None = None) -> Principal[str]:
        """The principal of a login token that is good for an hour."""
        principal = self.blocking.authenticate([f"Bearer {credential or token()}"])
        assert principal.kind is CredentialKind.INTERACTIVE
        self.reads.clear()
        return principal

    def change_owner(self, **changes: Any) -> None:
        self.owners["ann"] = replace(self.owners["ann"], **changes)

    def revoke(self, principal: Principal[str]) -> None:
        assert principal.key_id is not None
        self.store.revoke(principal.key_id, owner_id=principal.owner.id, at=self.clock.now())


class _Store(MemoryKeyStore):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = site
        # How many keys each batch was of.
        self.batches: list[int] = []

    def find(self, key_id: str) -> ApiKey | None:
        self._site.look_up(f"key {key_id}")
        return super().find(key_id)

    def find_several(self, key_ids: Sequence[str]) -> list[ApiKey]:
        self._site.look_up("keys")
        self.batches.append(len(key_ids))
        found = (super(_Store, self).find(key_id) for key_id in key_ids)
        return [record for record in found if record is not None]


class _AsyncStore(AsyncMemoryKeyStore):
    """One that can look up many keys at once."""

    def __init__(self, store: _Store) -> None:
        super().__init__()
        self._store = store
        self._records = store._records

    async def find(self, key_id: str) -> ApiKey | None:
        return self._store.find(key_id)

    async def find_many(self, key_ids: Sequence[str]) -> Sequence[ApiKey]:
        return self._store.find_several(key_ids)


class SingleStore(AsyncMemoryKeyStore):
    """One that cannot."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._store = site.store
        self._records = site.store._records

    async def find(self, key_id: str) -> ApiKey | None:
        return self._store.find(key_id)


Change = Callable[[Site, Principal[str]], object]

# What each step of a verification finds. `tests/core/test_verified_again.py` has all the ways in which a credential ends.
ENDS: list[tuple[str, str, Change, str]] = [
    ("key", "revoked", lambda site, key: site.revoke(key), "key_revoked"),
    ("key", "purged", lambda site, _: site.store._records.clear(), "key_unknown"),
    ("key", "owner gone", lambda site, _: site.owners.pop("ann"), "owner_disabled"),
    (
        "key",
        "permission lost",
        lambda site, _: site.change_owner(permissions=frozenset({"tasks:run"})),
        "permission_denied",
    ),
    ("login", "session gone", lambda site, _: site.sessions.clear(), "token_revoked"),
    ("login", "expired", lambda site, _: site.clock.advance(timedelta(hours=1)), "token_expired"),
    ("identity", "owner gone", lambda site, _: site.identities.clear(), "token_revoked"),
]
