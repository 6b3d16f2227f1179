"""The authenticator that blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar

from msk_auth._failures import log_failure, unavailable_because
from msk_auth.clock import Clock
from msk_auth.core import flows, revocation
from msk_auth.core.digest import KeyHasher
from msk_auth.core.errors import Problem
from msk_auth.core.events import CredentialUsed, Event
from msk_auth.core.flows import Changed, CreatedKey, Lifetime
from msk_auth.core.issuer import TokenIssuer
from msk_auth.core.keys import KeyFormat
from msk_auth.core.model import (
    ApiKey,
    ExternalIdentity,
    KeyLimits,
    KeyPage,
    KeyStatus,
    Owner,
    Principal,
    Session,
    UserT,
)
from msk_auth.core.policy import Policy
from msk_auth.core.revocation import Ended, LeakedKey
from msk_auth.core.steps import Flow
from msk_auth.core.store import KeyStore
from msk_auth.ports import SyncPorts
from msk_auth.tokens.profile import TokenProfile
from msk_auth.watch import MAX_INTERVAL, Watch, Watches, check_interval

from .base import FLUSH_SECONDS, NO_LIMITS, PROBLEM_BASE, BaseAuthenticator, refusal
from .validation import not_a_list_of_values

T = TypeVar("T")


class Authenticator(BaseAuthenticator[UserT]):
    """Authenticates requests and manages keys, blocking. Safe to use from several threads.

    Args:
        store: Where the keys are.
        find_owner: The application's user with this id, read afresh; None if there is none.
        tokens: The profile of the JWTs that this application issues, or several; none by default.
        issuers: Identity providers whose JWTs are accepted as well, such as `msk_auth.tokens.Auth0`.
        find_external_owner: The application's user for a subject of one of the issuers, read
            afresh; None if there is none. It may make one. Needed with `issuers`.
        find_session: The login session with this id, read afresh; None if there is none. Without it
            a JWT is good until it expires, whatever happens.
        key_limits: What new keys may be; a function is asked each time, so that a change takes
            effect at once.
        key_format: The prefix of the keys.
        hasher: How keys are digested; give it a pepper ring in production.
        on_event: Told what happened; what it raises is logged and changes nothing.
        realm: Names the protected space in challenges (RFC 9110, section 11.5).
        problem_base: What the `type` of problem documents begins with.
        clock: Where the time comes from.
        lease: For how long a verification may be reused; None reads the store each time. Whatever
            narrows access then takes that much longer to return: see `msk_auth.leases.cache`. What
            `find_owner` returns must not be able to change: see :func:`~msk_auth.immutable`.
        lease_entries: How many verifications are kept; each takes about 1 KiB.
        watch_interval: How often what is open is verified, by :meth:`watch`; at most a second.

    Raises:
        ConfigurationError: A setting cannot work; the message says what to write instead.
    """

    def __init__(
        self,
        store: KeyStore,
        *,
        find_owner: Callable[[str], Owner[UserT] | None],
        tokens: TokenProfile | Sequence[TokenProfile] = (),
        issuers: Sequence[TokenIssuer] = (),
        find_external_owner: Callable[[ExternalIdentity], Owner[UserT] | None] | None = None,
        find_session: Callable[[str], Session | None] | None = None,
        key_limits: KeyLimits | Callable[[], KeyLimits] = NO_LIMITS,
        key_format: KeyFormat | None = None,
        hasher: KeyHasher | None = None,
        on_event: Callable[[Event], None] | None = None,
        realm: str = "api",
        problem_base: str = PROBLEM_BASE,
        clock: Clock | None = None,
        lease: timedelta | None = None,
        lease_entries: int = 10_000,
        watch_interval: timedelta = MAX_INTERVAL,
    ) -> None:
        super().__init__(
            store=store,
            find_owner=find_owner,
            find_external_owner=find_external_owner,
            find_session=find_session,
            key_limits=key_limits,
            on_event=on_event,
            tokens=tokens,
            issuers=issuers,
            key_format=key_format,
            hasher=hasher,
            realm=realm,
            problem_base=problem_base,
            clock=clock,
            lease=lease,
            lease_entries=lease_entries,
            awaits=False,
            overrides_authenticate=type(self).authenticate is not Authenticator[Any].authenticate,
        )
        self._ports = SyncPorts(
            store,
            find_owner=find_owner,
            find_external_owner=find_external_owner,
            find_session=find_session,
            key_limits=key_limits,
            hasher=self.rules.hasher,
            cache=self._cache,
            clock=self.clock,
        )
        self._leases = self._ports.leases
        self._watches = Watches(self.rules, self._ports, self.clock, check_interval(watch_interval))
        self._on_event = on_event
        self._last_flush = self.clock.monotonic()

    def authenticate(self, authorization: Sequence[str | bytes]) -> Principal[UserT]:
        """The principal of a request.

        Args:
            authorization: The value of every `Authorization` header of the request.

        Raises:
            TypeError: It is one value, and not a list of all.
            CredentialsMissing: There are none, or of another scheme.
            RequestMalformed: They cannot be read.
            CredentialRefused: They are not accepted; the subclass says why.
            StoreUnavailable: It cannot be told right now.
        """
        principal = None if self._cache is None else self._cache.find(authorization)
        if principal is None:
            if isinstance(authorization, (str, bytes)):
                raise not_a_list_of_values()
            try:
                # Garbage ends here, before a clock is read or anybody asked.
                presented = flows.read_credential(self.rules, authorization)
                principal = self._ports.run(self._verify(presented))
            except Problem as problem:
                if self._on_event is not None:
                    self._emit(refusal(problem, self.clock.now()))
                raise
            except Exception as error:
                unavailable = unavailable_because(error)
                self._emit(refusal(unavailable, self.clock.now()))
                raise unavailable from error
        if self._on_event is not None:
            self._emit(CredentialUsed(self.clock.now(), principal))
        return principal

    def watch(self, principal: Principal[UserT], policy: Policy | None = None) -> Watch[UserT]:
        """Verify a principal again and again while something that it opened goes on, such as an event stream.

        Access ends within two seconds of the moment from which a new request with the same credential is refused: the
        key was revoked or has expired, its owner is disabled, the session or the token has ended. All watches of a process
        share their reads: one a second for each key, session and owner.

        Args:
            principal: As it was admitted.
            policy: What it has to meet all the time. None: to keep every permission that it was admitted with.
        """
        return self._watches.watch(principal, policy)

    def await_lease_expiry(self) -> None:
        """Return when no process can still use anything it read before this call.

        Call it after the application itself narrowed access and committed: disabled a user, took
        away a permission, ended a session. The key operations of this class do it by themselves.
        """
        self._ports.await_lease_expiry()

    def create_key(
        self,
        principal: Principal[UserT],
        *,
        name: str,
        scopes: Iterable[str] | None = None,
        lifetime: Lifetime = "default",
    ) -> CreatedKey:
        """Make a key for the principal's owner.

        Args:
            principal: Must be interactive.
            name: The owner's label for it, 1 to 100 characters.
            scopes: What the key may do at most, out of the principal's permissions; None means all
                that the owner may at any time, empty means nothing.
            lifetime: How long it works.

        Raises:
            InteractiveRequired: The principal is not interactive.
            InputInvalid: Name, scopes or lifetime are not acceptable.
            KeyLimitReached: The owner has as many active keys as allowed.
            StoreUnavailable: It could not be stored; whether it was is not known.
        """
        now = self.clock.now()
        return self._change(
            flows.create_key(
                self.rules, principal, name=name, scopes=scopes, lifetime=lifetime, now=now
            )
        )

    def rotate_key(
        self, principal: Principal[UserT], key_id: str, *, overlap: timedelta = timedelta(0)
    ) -> CreatedKey:
        """Make a successor of a key and let the predecessor work on for `overlap` (up to 90 days).

        Raises:
            InteractiveRequired, InputInvalid, KeyLimitReached, StoreUnavailable: As for
                :meth:`create_key`.
            KeyNotFound: The owner has no such key.
            KeyNotActive: It is revoked, expired or already rotated.
        """
        now = self.clock.now()
        return self._change(
            flows.rotate_key(self.rules, principal, key_id, overlap=overlap, now=now)
        )

    def revoke_key(self, principal: Principal[UserT], key_id: str) -> ApiKey:
        """Revoke a key, for good. No verification that starts after this returned succeeds.

        Raises:
            InteractiveRequired: The principal is not interactive.
            KeyNotFound: The owner has no such key.
            StoreUnavailable: Whether it was revoked is not known; try again.
        """
        return self._change(flows.revoke_key(principal, key_id, now=self.clock.now()))

    def delete_key(self, principal: Principal[UserT], key_id: str) -> None:
        """Revoke a key and take it off the list. Raises as :meth:`revoke_key` does."""
        self._change(flows.delete_key(principal, key_id, now=self.clock.now()))

    def expire_key(self, principal: Principal[UserT], key_id: str, *, at: datetime) -> ApiKey:
        """Bring a key's end forward to `at`, never put it off; raises as :meth:`revoke_key`."""
        return self._change(flows.expire_key(principal, key_id, at=at, now=self.clock.now()))

    def revoke_presented_key(self, key: str) -> ApiKey | None:
        """Revoke the key that somebody shows, without a login: holding it is enough to end it.

        Safe to repeat. No verification that starts after this returned succeeds.

        Args:
            key: The whole value.

        Returns:
            The record, or None if there is no such key. Whoever asks over a network must not learn
            which: an answer has to be the same for both (RFC 7009, section 2.2).

        Raises:
            KeyMalformed: It is no complete key; anybody can tell that.
            StoreUnavailable: Whether it was revoked is not known; try again.
        """
        flow = revocation.revoke_presented_key(self.rules, key, self.clock.now())
        return self._end(flow)[0]

    def revoke_leaked(self, leaked: Sequence[LeakedKey]) -> tuple[ApiKey | None, ...]:
        """Revoke keys that were found in public. Safe to repeat, and waits for leases once.

        Args:
            leaked: What was found, and where. A report of somebody whom you trust: its `sighting` is
                shown to the key's owner.

        Returns:
            For each of them the record, revoked, or None if it is no key of this application.

        Raises:
            StoreUnavailable: Whether all of them were revoked is not known; try again.
        """
        return self._end(revocation.revoke_leaked(self.rules, leaked, self.clock.now()))

    def forget_owner(self, owner_id: str) -> int:
        """Revoke every key of an owner and take it off the list. Safe to repeat, and waits for leases once.

        Delete or disable the user first, and commit: what a request that is under way makes meanwhile is
        found, what one makes later is not. A store may hold thousands of keys of one owner; each is a
        change of its own, so a call that fails is repeated from where it stopped.

        Args:
            owner_id: What `ApiKey.owner_id` holds. The application need not know the user any more.

        Returns:
            How many keys this call revoked.

        Raises:
            StoreUnavailable: Whether all of them were revoked is not known; try again.
        """
        flow = revocation.forget_owner(owner_id, self.clock.now())
        return len(self._end(flow))

    def get_key(self, principal: Principal[UserT], key_id: str) -> ApiKey:
        """A key of the principal's owner.

        Raises:
            KeyNotFound: The owner has no such key.
            StoreUnavailable: It cannot be told right now.
        """
        return self._ports.run(flows.get_key(principal, key_id))

    def list_keys(
        self,
        principal: Principal[UserT],
        *,
        status: KeyStatus | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> KeyPage:
        """A page of the owner's keys, newest first.

        Args:
            principal: Whose keys; any kind of credential may list.
            status: Only keys in this state.
            cursor: The `next_cursor` of the page before.
            limit: 1 to 200.

        Raises:
            InputInvalid: The cursor or the limit is not acceptable.
            StoreUnavailable: It cannot be told right now.
        """
        now = self.clock.now()
        return self._ports.run(
            flows.list_keys(principal, status=status, cursor=cursor, limit=limit, now=now)
        )

    def flush(self) -> None:
        """Write the collected times of last use and upgraded digests; what fails is kept for later."""
        self._last_flush = self.clock.monotonic()
        with self._usage.batch() as batch:
            if batch.last_used:
                self._ports.store.touch(batch.last_used)
            for key_id, (old, new) in batch.upgrades.items():
                self._ports.store.replace_digest(key_id, old=old, new=new)

    @property
    def is_flush_due(self) -> bool:
        """Whether the last :meth:`flush` is a minute ago."""
        return self.clock.monotonic() - self._last_flush >= FLUSH_SECONDS

    def flush_if_due(self) -> None:
        """:meth:`flush`, if the last one is a minute ago. Adapters call it after a response."""
        if self.is_flush_due:
            self.flush()

    def __enter__(self) -> Authenticator[UserT]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.flush()

    def _change(self, flow: Flow[Changed[T]]) -> T:
        changed = self._ports.run(flow)
        self._emit(changed.event)
        return changed.value

    def _end(self, flow: Flow[Ended]) -> tuple[ApiKey | None, ...]:
        ended = self._ports.run(flow)
        for event in ended.events:
            self._emit(event)
        return ended.records

    def _emit(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception as error:  # noqa: BLE001 - a hook never breaks a request
            what = f"the on_event hook failed on {type(event).__name__}"
            log_failure(logging.ERROR, what, error)
