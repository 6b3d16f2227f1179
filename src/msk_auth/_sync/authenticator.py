# Generated from src/msk_auth/_async/authenticator.py by tools/generate_sync.py: change that, and run this.
"""Authenticates requests and manages keys: this module waits, the core decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Unpack

from msk_auth._failures import unavailable_because
from msk_auth._sync.watch import MAX_INTERVAL, check_interval
from msk_auth.authenticator import UsageBuffer
from msk_auth.clock import Clock, SystemClock
from msk_auth.core import authentication, key_management, references
from msk_auth.core.authentication import Presented, Rules
from msk_auth.core.errors import (
    ConfigurationError,
    CredentialRefused,
    Forbidden,
    InputInvalid,
    Problem,
)
from msk_auth.core.events import (
    CredentialUsed,
    Event,
    KeyEvent,
    LeakedKey,
    Refusal,
    RevocationCause,
)
from msk_auth.core.fields import KeyDetails, KeyEdit
from msk_auth.core.key_management import (
    MANAGE,
    MAX_PAGE,
    Authority,
    CreatedKey,
    Lifetime,
    checked_id,
)
from msk_auth.core.keys import KeyFormat, KeyHasher
from msk_auth.core.logins import RequestLogins
from msk_auth.core.model import (
    ApiKey,
    ExternalIdentity,
    KeyLimits,
    KeyPage,
    KeyQuery,
    KeyStatus,
    Login,
    Owner,
    Principal,
    Session,
    UserT,
)
from msk_auth.core.policy import Policy, require_interactive
from msk_auth.core.store import KeyChange, offered
from msk_auth.leases import LeaseCache
from msk_auth.tokens.issuers import ExternalIssuer, share_keys
from msk_auth.tokens.profile import TokenProfile
from msk_auth.users import AnyUsers, RequestSession, users_in

from .administration import AdminKeys, announce_expiry
from .leases import Leases
from .ports import Ports
from .primitives import Lifecycle, refuse_async
from .store import KeyStore
from .verification import LookUps, Verifier
from .watch import Watch, Watches

NO_LIMITS: Final = KeyLimits()


class Authenticator(Lifecycle[UserT]):
    """Authenticates requests and manages keys, blocking. Safe to use from several threads.

    As a context manager it writes times of last use when it is closed::

        with authenticator:
            ...

    Args:
        store: Stores the keys.
        find_owner: Returns the :class:`~msk_auth.Owner` of the application's user with an id, read again on each call; None
            if no user has this id. :class:`~msk_auth.Users` reads in the request's session, if the adapter
            knows it.
        tokens: The profile of the JWTs that this application issues, or several; none by default.
        issuers: Identity providers whose JWTs are accepted as well: see :class:`~msk_auth.tokens.issuers.ExternalIssuer`.
            Opening this authenticator starts to fetch their keys.
        find_external_owner: Returns the :class:`~msk_auth.Owner` of the application's user for a subject of one of the
            issuers, read again on each call; None if no user belongs to it. It may create a user. Required with `issuers`.
        logins: Functions of the application that return a :class:`~msk_auth.Login` for their own bearer credentials,
            and None for others. Called in this order, if the credential is neither a key nor a token of `tokens` or `issuers`.
        find_session: Returns the :class:`~msk_auth.Session` of a login by its id, read again on each call; None if no session
            has this id. Without this function a JWT is accepted until it expires, and logging out cannot end it.
        key_limits: Limits for new keys. A function is called for each new key, so that a change takes effect at once.
        may_act_for: Takes a person's principal, read again, and another owner, such as a service account. Returns the
            permissions that the person may give to the owner's keys, as any iterable of strings, or None if the person may not
            act for this owner. The owner's permissions and the grants of the person's token limit them further; if none
            remain, the person can only list and end keys. Without this function, only its owner manages a key.
        key_format: The prefix of the keys.
        hasher: Digests and compares keys. Give it a pepper ring in production.
        on_event: Called with each event. Its exceptions are logged and change no result.
        realm: Names the protected space in challenges (RFC 9110, section 11.5).
        clock: The source of time.
        lease: How long a verification may be reused; None reads the store for each request. Every call that ends
            access waits that much longer: see `msk_auth.leases`. The owners that `find_owner` returns must be
            immutable: see :func:`~msk_auth.immutable`.
        watch_interval: How often :meth:`watch` verifies an open connection; at most a second.

    Raises:
        ConfigurationError: An argument cannot work; the message names the correct form.
    """

    def __init__(
        self,
        store: KeyStore,
        *,
        find_owner: Callable[[str], Owner[UserT] | None],
        tokens: TokenProfile | Sequence[TokenProfile] = (),
        issuers: Sequence[ExternalIssuer] = (),
        logins: Sequence[Callable[[str], Login | None]] = (),
        find_external_owner: Callable[[ExternalIdentity], Owner[UserT] | None] | None = None,
        find_session: Callable[[str], Session | None] | None = None,
        key_limits: KeyLimits | Callable[[], KeyLimits] = NO_LIMITS,
        may_act_for: Callable[[Principal[UserT], Owner[UserT]], Iterable[str] | None] | None = None,
        key_format: KeyFormat | None = None,
        hasher: KeyHasher | None = None,
        on_event: Callable[[Event], None] | None = None,
        realm: str = "api",
        clock: Clock | None = None,
        lease: timedelta | None = None,
        watch_interval: timedelta = MAX_INTERVAL,
    ) -> None:
        if bool(issuers) != (find_external_owner is not None):
            raise ConfigurationError(
                "issuers and find_external_owner belong together: a function that returns the Owner for"
                " an ExternalIdentity, by its issuer and its subject."
            )
        refuse_async(
            {
                "store.find": offered(store, "find"),
                "store.on_change": offered(store, "on_change"),
                "find_owner": find_owner,
                "on_event": on_event,
            }
        )
        if not realm.isascii() or not realm.isprintable() or '"' in realm or "\\" in realm:
            raise ConfigurationError("realm must be printable ASCII without quotes, such as 'api'.")
        self.profiles: tuple[TokenProfile, ...] = (
            (tokens,) if isinstance(tokens, TokenProfile) else tuple(tokens)
        )
        self.issuers: tuple[ExternalIssuer, ...] = tuple(issuers)
        share_keys(self.issuers)
        # A list, to which the helpers for tests add.
        self.logins: list[Callable[[str], object]] = list(logins)
        self.rules: Rules = Rules(
            key_format=KeyFormat() if key_format is None else key_format,
            hasher=KeyHasher() if hasher is None else hasher,
            issuers=(*self.profiles, *self.issuers),
            logins=self.logins,
            checks_sessions=find_session is not None,
            shares_principals=lease is not None,
            delegates=may_act_for is not None,
        ).check()
        self.users: AnyUsers | None = users_in(find_owner)
        self.realm: str = realm
        self.clock: Clock = SystemClock() if clock is None else clock
        self._usage = UsageBuffer()
        self._cache: LeaseCache[UserT] | None = (
            None if lease is None else LeaseCache(lease, clock=self.clock)
        )
        authenticates_itself = type(self).authenticate is not Authenticator[Any].authenticate
        self.cached_principal: Callable[[Sequence[str | bytes]], Principal[UserT] | None] | None = (
            None
            if self._cache is None or on_event is not None or authenticates_itself
            else self._cache.find
        )
        self._store = store
        self._look_ups = LookUps(store, find_owner, find_external_owner, find_session)
        self._verifier = Verifier(self.rules, self._look_ups)
        self._leases: Leases[UserT] = Leases(self._cache, store, self.clock)
        self._ports = Ports(
            store,
            self._look_ups,
            self._verifier,
            self._leases,
            self.clock,
            key_limits=key_limits,
            may_act_for=may_act_for,
            on_event=on_event,
        )
        self._watch_interval = check_interval(watch_interval)
        self._watches: Watches[UserT] = Watches(
            self.rules, self._look_ups, self.clock, self._watch_interval
        )
        self._on_event = on_event
        self._begin_closed()

    def authenticate(
        self,
        authorization: Sequence[str | bytes],
        elsewhere: RequestLogins | None = None,
        request: RequestSession | None = None,
        address: str | None = None,
    ) -> Principal[UserT]:
        """The principal of a request.

        Args:
            authorization: The value of every `Authorization` header of the request.
            elsewhere: For adapters: functions that may find a login elsewhere in the request, such as in its session. Called
                only without a bearer credential.
            request: For adapters: the session of the request, in which :class:`~msk_auth.Users` read the owner.
            address: The client's address, such as `203.0.113.7`, as the server states it, never from a header of the request.
                Without an address, a key with networks is refused.

        Raises:
            TypeError: `authorization` is one value, not a list.
            CredentialsMissing: There are no credentials, or only credentials of another scheme.
            RequestMalformed: The header is malformed.
            CredentialRefused: The credential is not accepted; `code` names the reason.
            Forbidden: The key has networks, and the address is in none of them.
            StoreUnavailable: The store or a look-up did not answer.
        """
        principal = None if self._cache is None else self._cache.find(authorization)
        if principal is None:
            if isinstance(authorization, (str, bytes)):
                # Each of its characters would count as a value.
                raise TypeError(
                    "authenticate takes a list with the values of all Authorization headers. Write"
                    " authenticate([value]), or authenticate([]) if there is none."
                )
            try:
                # A malformed credential ends here, before the clock or the store is read.
                presented = authentication.read_credential(self.rules, authorization, elsewhere)
                principal = self._verify(presented, request, address)
            except Problem as problem:
                self._report(problem)
                raise
            except Exception as error:
                raise self._report(error) from error
        if self._on_event is not None:
            self._ports.emit(CredentialUsed(self._ports.now(), principal))
        return principal

    def resume(self, reference: str) -> Principal[UserT]:
        """The principal of a reference, after verifying its key, or its owner and the session of its login.

        A worker calls this just before it acts, and then :meth:`authorize` with the policy of the work. Every call reads the
        store, even under a lease, so a reference is refused as soon as a call that ended access has returned. For long
        work, :meth:`watch` verifies the principal again.

        Args:
            reference: A reference made by :meth:`reference`, in this process or another.

        Returns:
            A principal that is never interactive, with the current permissions of the key, or of the login's owner.

        Raises:
            CredentialRefused: The text is not a reference of this application, or was changed; or the key, the login or its
                session has ended, or the owner is disabled or gone. `code` names the reason. The same reference will not work
                again.
            StoreUnavailable: The store or a look-up did not answer. Try the same reference again later.
            ConfigurationError: There is no pepper.
        """
        peppers = self._peppers_of_references()
        try:
            kept = references.read(peppers, reference)
            now = self._ports.now()
            principal: Principal[UserT] = self._verifier.verify_again(kept, now)
        except Problem as problem:
            self._report(problem)
            raise
        except Exception as error:
            raise self._report(error) from error
        self._usage.note(principal, None)
        self._ports.emit(CredentialUsed(self._ports.now(), principal))
        return principal

    def watch(self, principal: Principal[UserT], policy: Policy | None = None) -> Watch[UserT]:
        """Verify a principal repeatedly while its connection is open, such as an event stream.

        When a new request with the same credential would be refused, access ends within two seconds: the key
        was revoked or has expired, its owner is disabled, the session or the token has ended. A watch also verifies the
        principal when it begins.

        A watch reads its key or session, and its owner, once a second.

        Args:
            principal: The admitted principal.
            policy: The policy that the principal must keep meeting. None: it must keep all its current permissions.

        Returns:
            A watch, to use in one thread. `watch.check()` returns while access lasts, and raises the refusal afterwards:
            call it before each item that you send, and at least once a second. `watch.stream(source)` does so for the items
            of an iterable. `watch.refusal` is None while access lasts.
        """
        return Watch(self._watches, principal, policy)

    def await_lease_expiry(self) -> None:
        """Wait until no process can use reads from before this call.

        Call this after your application has ended access and committed: disabled a user, removed a permission, ended a
        session. The key operations of this class do so themselves.
        """
        self._ports.leases.await_expiry()

    def create_key(
        self,
        principal: Principal[UserT],
        *,
        name: str,
        scopes: Iterable[str] | None = None,
        lifetime: Lifetime = "default",
        on_behalf_of: str | None = None,
        **details: Unpack[KeyDetails],
    ) -> CreatedKey:
        """Create a key for the principal's owner, or on behalf of another owner.

        Args:
            principal: Must be interactive.
            name: The owner's name for the key, 1 to 100 characters.
            scopes: Permissions that limit the key, out of the principal's permissions. None: all permissions that the owner
                has at any time. Empty: none.
            lifetime: How long the key works.
            on_behalf_of: The id of another owner, such as a service account, for whom the principal acts. The key gets at
                most that owner's permissions that `may_act_for` returned. It always has scopes: without `scopes`,
                all permissions that it may get now.
            **details: Further fields, each empty by default. `description`: up to 500 characters. `labels`: labels for
                searching, such as `env:prod`: up to 20, each of 1 to 50
                lower-case letters, digits and `. _ : / -`, beginning with a letter or a digit. `networks`: the networks from
                which the key works: up to 50 such as `203.0.113.0/24`, or addresses; None means everywhere. `resources`:
                the owner's resources that the key reaches, such as `task:42`: up to 100; None means all, empty none.

        Raises:
            InteractiveRequired: The principal is not interactive.
            InputInvalid: A field of the key is invalid, or the other owner is disabled.
            ConfigurationError: `lifetime` has the wrong type.
            PermissionDenied: No other owner has this id, or the principal may not act for them.
            CredentialRefused: The principal acts for another owner, and its login has ended since.
            KeyLimitReached: The owner has as many active keys as allowed.
            StoreUnavailable: The store did not answer. The key may exist.
        """
        now = self._ports.now()
        MANAGE.check(principal, now)
        authority = self._authority_to_give(principal, on_behalf_of, now)
        limits = self._ports.key_limits()
        created = key_management.new_key(
            self.rules,
            authority,
            limits,
            name=name,
            scopes=scopes,
            lifetime=lifetime,
            details=details,
            now=now,
        )
        record = created.record
        event = KeyEvent("created", now, record, principal)
        self._confirm_authority(principal, on_behalf_of, record.scopes, now)
        self._ports.store.insert(
            record, max_active=limits.max_active, now=now, change=lambda _: (event,)
        )
        self._ports.emit(event)
        return created

    def rotate_key(
        self,
        principal: Principal[UserT],
        key_id: str,
        *,
        overlap: timedelta = timedelta(0),
        on_behalf_of: str | None = None,
    ) -> CreatedKey:
        """Create a successor of a key, with the same scopes, resources, lifetime and editable fields.

        Args:
            principal: Must be interactive.
            key_id: The id of the key.
            overlap: How long the predecessor stays active, up to 90 days and never past its own end.
            on_behalf_of: The id of another owner for whom the principal acts, as for :meth:`create_key`. The successor keeps
                only scopes that this owner still has.

        Raises:
            InteractiveRequired, InputInvalid, KeyLimitReached, StoreUnavailable: As for
                :meth:`create_key`.
            PermissionDenied: As for :meth:`create_key`, or the principal may not grant all of the successor's scopes, or
                the key has no scopes.
            KeyNotFound: The owner has no such key.
            KeyNotActive: The key is revoked, expired or already rotated.
        """
        now = self._ports.now()
        MANAGE.check(principal, now)
        authority = self._authority_to_give(principal, on_behalf_of, now)
        key_management.check_overlap(overlap)
        limits = self._ports.key_limits()
        record = self._find_key_of(authority.owner, key_id)
        created = key_management.successor_of(self.rules, record, authority, limits, now)
        ends_at = now + overlap
        if record.expires_at is not None:
            ends_at = min(ends_at, record.expires_at)
        event = partial(KeyEvent, "rotated", now, principal=principal, successor=created.record)
        self._confirm_authority(principal, on_behalf_of, created.record.scopes, now)
        rotated = self._ports.store.rotate(
            record.id,
            successor=created.record,
            ends_at=ends_at,
            max_active=limits.max_active,
            now=now,
            change=lambda after: (event(after),),
        )
        self._access_ended(event, rotated)
        return created

    def revoke_key(
        self, principal: Principal[UserT], key_id: str, *, on_behalf_of: str | None = None
    ) -> ApiKey:
        """Revoke a key for good. No verification that starts after this returned succeeds.

        Args:
            principal: Must be interactive.
            key_id: The id of the key.
            on_behalf_of: The id of another owner for whom the principal acts, as for :meth:`create_key`.

        Raises:
            InteractiveRequired: The principal is not interactive.
            KeyNotFound: The owner has no such key.
            PermissionDenied, CredentialRefused: As for :meth:`create_key`, with `on_behalf_of`.
            StoreUnavailable: The store did not answer. The key may be revoked; try again.
        """
        now = self._ports.now()
        MANAGE.check(principal, now)
        owner = (self._authority(principal, on_behalf_of, now)).owner
        return self._revoke(principal, key_id, owner, on_behalf_of, now)

    def delete_key(
        self, principal: Principal[UserT], key_id: str, *, on_behalf_of: str | None = None
    ) -> None:
        """Revoke a key and remove it from the list. No verification that starts after this returned succeeds.

        Args:
            principal: Must be interactive.
            key_id: The id of the key.
            on_behalf_of: The id of another owner for whom the principal acts, as for :meth:`create_key`.

        Raises:
            InteractiveRequired: The principal is not interactive.
            KeyNotFound: The owner has no such key.
            PermissionDenied, CredentialRefused: As for :meth:`create_key`, with `on_behalf_of`.
            StoreUnavailable: The store did not answer. The key may be gone; try again.
        """
        now = self._ports.now()
        MANAGE.check(principal, now)
        owner = (self._authority(principal, on_behalf_of, now)).owner
        event = partial(KeyEvent, "deleted", now, principal=principal)
        deleted = self._ports.store.delete(
            checked_id(key_id), owner_id=owner.id, at=now, change=lambda after: (event(after),)
        )
        self._access_ended(event, deleted)

    def expire_key(
        self,
        principal: Principal[UserT],
        key_id: str,
        *,
        at: datetime,
        on_behalf_of: str | None = None,
    ) -> ApiKey:
        """Make a key expire at `at`, unless it expires earlier.

        Args:
            principal: Must be interactive.
            key_id: The id of the key.
            at: The time, with its offset from UTC. A time that is not in the future revokes the key, for good. Each process
                compares a later time with its own clock.
            on_behalf_of: The id of another owner for whom the principal acts, as for :meth:`create_key`.

        Raises:
            InputInvalid: The time has no offset, or is after the year 9999 in UTC.
            InteractiveRequired: The principal is not interactive.
            KeyNotFound: The owner has no such key.
            PermissionDenied, CredentialRefused: As for :meth:`create_key`, with `on_behalf_of`.
            StoreUnavailable: The store did not answer. The key may expire then; try again.
        """
        now = self._ports.now()
        MANAGE.check(principal, now)
        owner = (self._authority(principal, on_behalf_of, now)).owner
        if at.utcoffset() is None:
            raise InputInvalid.of("expires_at", "Give the time with its offset from UTC.")
        if at <= now:
            # Another process's clock may be behind, and would accept the key for that time. Revoking reads no clock.
            return self._revoke(principal, key_id, owner, on_behalf_of, now)
        try:
            at = at.astimezone(UTC)
        except OverflowError:
            raise InputInvalid.of("expires_at", "Give a time before the year 10000.") from None
        event = partial(KeyEvent, "expiry_set", now, principal=principal)
        expiring = self._ports.store.expire(
            checked_id(key_id), owner_id=owner.id, at=at, change=lambda after: (event(after),)
        )
        return self._access_ended(event, expiring)

    def update_key(
        self,
        principal: Principal[UserT],
        key_id: str,
        *,
        on_behalf_of: str | None = None,
        **changes: Unpack[KeyEdit],
    ) -> ApiKey:
        """Edit the name, description, labels and networks of a key.

        Fields that you leave out stay; of two concurrent edits the later wins.

        A key in any state can be edited. Its permissions and its expiry cannot.

        Args:
            principal: Must be interactive.
            key_id: The id of the key.
            on_behalf_of: The id of another owner for whom the principal acts, as for :meth:`create_key`.
            **changes: The new `name`, `description`, `labels` and `networks`, as for :meth:`create_key`. None clears a
                description, and makes a key work from everywhere; new labels and networks replace the old ones. No
                verification that starts after this returned succeeds from outside of the new networks.

        Raises:
            InputInvalid: No field is given, or a value is invalid.
            InteractiveRequired, KeyNotFound, StoreUnavailable: As for :meth:`revoke_key`.
            PermissionDenied, CredentialRefused: As for :meth:`create_key`, with `on_behalf_of`.
        """
        now = self._ports.now()
        MANAGE.check(principal, now)
        authority = self._authority_to_give(principal, on_behalf_of, now)
        update = key_management.update_of(changes)
        if "networks" in update and authority.handed is not None:
            edited = self._find_key_of(authority.owner, key_id)
            authority = self._authority_to_give(principal, on_behalf_of, now)
            authority.check_handed(edited.scopes)
        event = partial(KeyEvent, "updated", now, principal=principal, fields=tuple(update))
        updated = self._ports.store.update(
            checked_id(key_id),
            owner_id=authority.owner.id,
            fields=update,
            change=lambda after: (event(after),),
        )
        if "networks" in update:
            # The key may be cached without the new networks.
            self._ports.leases.await_expiry()
        return self._changed(event, updated)

    def revoke_presented_key(self, key: str) -> ApiKey | None:
        """Revoke a key for a client that presents it. The key itself is the proof; no login is needed.

        Safe to repeat. No verification that starts after this returned succeeds.

        Args:
            key: The whole key.

        Returns:
            The record, or None if the key does not exist. A network client must not learn the difference: send the
            same response for both (RFC 7009, section 2.2).

        Raises:
            CredentialRefused: `key` is not a complete key. A client may learn this, because checking it needs no secret.
            StoreUnavailable: The store did not answer. The key may be revoked; try again.
        """
        now = self._ports.now()
        presented = self.rules.key_format.parse(key)
        try:
            held = self._ports.verifier.verify_key(presented)
        except CredentialRefused:
            return None
        event = partial(KeyEvent, "revoked", now, cause="possession")
        (revoked,) = self._ports.revoke_all([held], now, lambda after: (event(after),))
        record = held if revoked is None else revoked
        self._ports.emit(event(record))
        return record

    def revoke_leaked(self, leaked: Sequence[LeakedKey]) -> tuple[ApiKey | None, ...]:
        """Revoke keys that were found in public. Safe to repeat; waits for leases once.

        Args:
            leaked: The keys, and the places of the leaks, from a reporter that you trust: the key's owner sees the
                `location`.

        Returns:
            For each of them the revoked record, or None if this application has no such key.

        Raises:
            StoreUnavailable: The store did not answer. Some keys may be revoked; try again.
        """
        now = self._ports.now()
        held: dict[str, ApiKey] = {}
        for key in dict.fromkeys(found.key for found in leaked):
            # Malformed and unknown keys are skipped.
            with suppress(CredentialRefused):
                presented = self.rules.key_format.parse(key)
                held[key] = self._ports.verifier.verify_key(presented)
        revoked = self._ports.revoke_all(
            list(held.values()),
            now,
            lambda after: key_management.leaks_of(after, leaked, held, now),
        )
        records = {
            key: before if after is None else after
            for (key, before), after in zip(held.items(), revoked, strict=True)
        }
        for found in leaked:
            if found.key in records:
                self._ports.emit(
                    KeyEvent("leaked", now, records[found.key], location=found.location)
                )
        return tuple(records.get(found.key) for found in leaked)

    def forget_owner(self, owner_id: str) -> int:
        """Revoke all keys of an owner and remove them from the list. Safe to repeat; waits for leases once.

        Delete or disable the user first, and commit. A key that a running request creates meanwhile is revoked too, but not a
        key that is created after this call. Each key is changed separately, so if you repeat a failed call, it continues with
        the remaining keys.

        Args:
            owner_id: The `ApiKey.owner_id`. The user need not exist.

        Returns:
            The number of keys that this call revoked.

        Raises:
            StoreUnavailable: The store did not answer. Some keys may be revoked; try again.
        """
        now = self._ports.now()
        events = self._delete_all(owner_id, now)
        self._ports.leases.await_expiry()
        # Until now a request may have had the owner's login under a lease, and made another key.
        while late := self._delete_all(owner_id, now):
            events += late
            self._ports.leases.await_expiry()
        for event in events:
            self._ports.emit(event)
        return sum(event.action == "revoked" for event in events)

    def admin_keys(self, permission: str, *, max_age: timedelta | None = None) -> AdminKeys[UserT]:
        """Operations of administrators: they list and revoke the keys of all owners, and cannot create or extend keys.

        Args:
            permission: The permission of administrators, who also need an interactive login.
            max_age: The greatest age of that login; None means any.

        Returns:
            An object with three methods, whose first argument is the administrator's principal. `list_keys(principal, wanted,
            cursor=…, limit=…)` is a page of the keys that a :class:`~msk_auth.keys.KeyFilter` matches, `revoke_key(principal,
            key_id)` revokes one key, and `revoke_keys(principal, key_ids)` up to 200.

        Raises:
            ConfigurationError: The permission is malformed.
        """
        return AdminKeys(self._ports, require_interactive(permission, max_age=max_age))

    def announce_expiry(self) -> int:
        """Send an event `expiring` for each key that ends within 30, 7 or 1 days, once for each of these.

        A key is announced for the least of these that it has reached. Revoked, replaced and expired keys are not announced,
        and a key with a lifetime of 30 days is first announced 7 days before its end. Call this regularly, such as every hour,
        in any number of processes: each event is sent once. The library starts no thread, no task and no timer for it.

        The store's `on_change` gets the event in the transaction that records it: exactly once. `on_event` gets it after the
        commit: not at all if the process dies between the two.

        Returns:
            The number of events sent.

        Raises:
            StoreUnavailable: The store did not answer, or `on_change` raised. Events that were sent stay recorded; the next
                call sends the rest.
        """
        return announce_expiry(self._ports)

    def get_key(
        self, principal: Principal[UserT], key_id: str, *, on_behalf_of: str | None = None
    ) -> ApiKey:
        """A key of the principal's owner.

        Args:
            principal: The principal of the key's owner, with any kind of credential.
            key_id: The id of the key.
            on_behalf_of: The id of another owner for whom the principal acts, which then must be interactive.

        Raises:
            KeyNotFound: The owner has no such key.
            InteractiveRequired, PermissionDenied, CredentialRefused: As for :meth:`create_key`, with
                `on_behalf_of`.
            StoreUnavailable: The store did not answer.
        """
        authority = self._authority(principal, on_behalf_of, self._ports.now())
        return self._find_key_of(authority.owner, key_id)

    def list_keys(
        self,
        principal: Principal[UserT],
        *,
        status: KeyStatus | None = None,
        cursor: str | None = None,
        limit: int = 50,
        label: str | None = None,
        on_behalf_of: str | None = None,
    ) -> KeyPage:
        """A page of the owner's keys, newest first.

        Args:
            principal: The principal of the keys' owner, with any kind of credential.
            status: Only keys in this state.
            cursor: The `next_cursor` of the previous page.
            limit: 1 to 200.
            label: Only keys with this label.
            on_behalf_of: The id of another owner for whom the principal acts, which then must be interactive.

        Raises:
            InputInvalid: The cursor, the limit or the label is invalid.
            InteractiveRequired, PermissionDenied, CredentialRefused: As for :meth:`create_key`, with
                `on_behalf_of`.
            StoreUnavailable: The store did not answer.
        """
        now = self._ports.now()
        owner = (self._authority(principal, on_behalf_of, now)).owner
        query = key_management.page_query(
            owner, now, status=status, cursor=cursor, limit=limit, label=label
        )
        return key_management.page_of(self._ports.store.list(query), limit)

    def flush(self) -> None:
        """Write the collected times of last use and upgraded digests.

        If the store does not answer, they are kept for the next call.
        """
        self._note_flush()
        with self._usage.batch() as batch:
            if batch.last_used:
                self._store.touch(batch.last_used)
            for key_id, (old, new) in batch.upgrades.items():
                self._store.replace_digest(key_id, old=old, new=new)

    def _verify(
        self,
        presented: Presented | RequestLogins,
        request: RequestSession | None,
        address: str | None,
    ) -> Principal[UserT]:
        """The principal of a request's credential: cached under a lease, otherwise from the store.

        A lease covers a credential, and is shared by requests. Each request has its own address.
        """
        if self._cache is None:
            verifier = self._verifier
            if request is not None:
                verifier = Verifier(self.rules, self._look_ups.in_session(request))
            outcome = verifier.authenticate(presented, self.clock.now())
        else:
            # Not in the request's session: it may return earlier reads, which can be older than a lease,
            # and other requests would get them.
            found = self._leases.find_or_verify(
                presented, lambda: self._verifier.authenticate(presented, self.clock.now())
            )
            if isinstance(found, Principal):
                return authentication.at_address(found, address)
            outcome = found
        principal = authentication.at_address(outcome.principal, address)
        self._usage.note(principal, outcome.upgrade)
        return principal

    def _authority(
        self, principal: Principal[UserT], on_behalf_of: str | None, now: datetime
    ) -> Authority:
        """The owner whose keys a principal manages: its own, or another owner if the application lets it act for them.

        Raises:
            ConfigurationError: The application has no `may_act_for`.
            InteractiveRequired: The principal is not an interactive login.
            CredentialRefused: The login of the principal would be refused now.
            PermissionDenied: The owner does not exist, or the principal may not act for them. One answer for both, so that
                callers cannot find out ids of owners.
        """
        if on_behalf_of is None:
            return key_management.own_authority(principal)
        key_management.check_delegation(self.rules, principal, now)
        acting = self._ports.verifier.verify_again(principal, now)
        owner = None
        if key_management.can_be_owner_id(on_behalf_of):
            owner = self._ports.look_ups.find_owner(on_behalf_of)
        handed = None if owner is None else self._ports.may_act_for(acting, owner)
        return key_management.delegated_authority(acting, owner, handed)

    def _authority_to_give(
        self, principal: Principal[UserT], on_behalf_of: str | None, now: datetime
    ) -> Authority:
        """Like :meth:`_authority`, for a principal that makes or edits a key."""
        authority = self._authority(principal, on_behalf_of, now)
        if on_behalf_of is not None:
            key_management.check_gives(authority)
        return authority

    def _confirm_authority(
        self,
        principal: Principal[UserT],
        on_behalf_of: str | None,
        scopes: frozenset[str] | None,
        now: datetime,
    ) -> None:
        if on_behalf_of is not None:
            authority = self._authority_to_give(principal, on_behalf_of, now)
            key_management.confirm_authority(authority, scopes)

    def _revoke(
        self,
        principal: Principal[UserT],
        key_id: str,
        owner: Owner[Any],
        on_behalf_of: str | None,
        now: datetime,
    ) -> ApiKey:
        cause: RevocationCause = "owner" if on_behalf_of is None else "delegate"
        event = partial(KeyEvent, "revoked", now, principal=principal, cause=cause)
        revoked = self._ports.store.revoke(
            checked_id(key_id), owner_id=owner.id, at=now, change=lambda after: (event(after),)
        )
        return self._access_ended(event, revoked)

    def _find_key_of(self, owner: Owner[Any], key_id: str) -> ApiKey:
        found = self._ports.look_ups.find_key(checked_id(key_id))
        return key_management.of_owner(found, owner)

    def _access_ended(self, event: Callable[[ApiKey], Event], record: ApiKey | None) -> ApiKey:
        """Wait, after the commit, until no process can use earlier reads."""
        self._ports.leases.await_expiry()
        return self._changed(event, record)

    def _changed(self, event: Callable[[ApiKey], Event], record: ApiKey | None) -> ApiKey:
        changed = key_management.present(record)
        self._ports.emit(event(changed))
        return changed

    def _delete_all(self, owner_id: str, now: datetime) -> list[KeyEvent]:
        """Delete each key of the owner's list, and return the events."""

        def change_of(before: ApiKey) -> KeyChange:
            return lambda after: (key_management.forgotten(before, after, now),)

        events: list[KeyEvent] = []
        query = KeyQuery(owner_id, now, limit=MAX_PAGE)
        # Deleted keys leave the list, so the next page is the first page again, with keys that were made meanwhile.
        while page := self._ports.store.list(query):
            for before in page:
                after = self._ports.store.delete(
                    before.id, owner_id=before.owner_id, at=now, change=change_of(before)
                )
                if after is not None:
                    events.append(key_management.forgotten(before, after, now))
        return events

    def _report(self, error: Exception) -> Problem:
        """Report the refusal of a credential as an event. Any exception other than a `Problem` is a 503: fail closed."""
        problem = error if isinstance(error, Problem) else unavailable_because(error)
        if self._on_event is not None:
            key_id = problem.key_id if isinstance(problem, CredentialRefused | Forbidden) else None
            self._ports.emit(Refusal(self._ports.now(), problem.code, key_id))
        return problem
