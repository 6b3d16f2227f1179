"""The two drivers of the core: one that blocks and one that awaits.

`Authenticator` and `AsyncAuthenticator` hold a store, the application's look-ups and a clock, and
run the flows of `core.flows` against them. They decide nothing. Whatever a store or a look-up
raises becomes :class:`~msk_auth.StoreUnavailable`: fail closed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Generic, TypeVar, cast

from .clock import Clock, SystemClock
from .core import flows
from .core.digest import KeyHasher
from .core.errors import ConfigurationError, CredentialRefused, Problem, StoreUnavailable
from .core.events import CredentialUsed, Event, Refusal
from .core.flows import Changed, CreatedKey, Lifetime, Rules
from .core.keys import KeyFormat
from .core.model import ApiKey, KeyLimits, KeyPage, KeyStatus, Owner, Principal, Session, UserT
from .core.policy import Policy
from .core.steps import Flow, Step
from .core.store import AsyncKeyStore, KeyStore
from .core.tokens import TokenProfile
from .lease import LeaseCache
from .ports import AsyncPorts, SyncPorts
from .touches import Touches

T = TypeVar("T")

PROBLEM_BASE: Final = "https://msk-auth.readthedocs.io/en/stable/reference/errors/"
"""What the `type` of problem documents begins with by default; `#` and the code are added."""

_NO_LIMITS: Final = KeyLimits()
_NO_REGISTER: Final = (
    "This store cannot record leases: give it longest_lease() and raise_longest_lease(),"
    " or leave the lease out."
)
_FLUSH_SECONDS: Final = 60.0

_log = logging.getLogger("msk_auth")


class _Shared(Generic[UserT]):
    """What both drivers know and how they speak of it."""

    def __init__(
        self,
        *,
        tokens: TokenProfile | Sequence[TokenProfile],
        checks_sessions: bool,
        key_format: KeyFormat | None,
        hasher: KeyHasher | None,
        realm: str,
        problem_base: str,
        clock: Clock | None,
        lease: timedelta | None,
        lease_entries: int,
    ) -> None:
        if not realm.isascii() or not realm.isprintable() or '"' in realm or "\\" in realm:
            raise ConfigurationError("realm must be printable ASCII without quotes, such as 'api'.")
        self.rules = Rules(
            key_format=KeyFormat() if key_format is None else key_format,
            hasher=KeyHasher() if hasher is None else hasher,
            tokens=(tokens,) if isinstance(tokens, TokenProfile) else tuple(tokens),
            checks_sessions=checks_sessions,
        )
        self.realm = realm
        self.problem_base = problem_base
        self.clock: Clock = SystemClock() if clock is None else clock
        self._touches = Touches()
        self._cache: LeaseCache[UserT] | None = None
        if lease is not None:
            self._cache = LeaseCache(lease, clock=self.clock, max_entries=lease_entries)
        self._lease_is_recorded = False

    def authorize(self, principal: Principal[UserT], policy: Policy) -> None:
        """Let the principal pass, or raise what :meth:`Policy.check` raises."""
        policy.check(principal, self.clock.now())

    def _settle(
        self, outcome: flows.Authenticated, now: datetime, lease: _Lease | None
    ) -> Principal[UserT]:
        """Keep what a successful verification leaves behind, and give its principal."""
        principal: Principal[UserT] = outcome.principal
        if principal.key_id is not None:
            self._touches.note(principal.key_id, now, outcome.upgrade)
        if lease is not None and self._cache is not None:
            self._cache.fill(
                lease.fingerprint,
                principal,
                began=lease.began,
                valid_until=outcome.valid_until,
            )
        return principal


@dataclass(frozen=True, slots=True)
class _Lease:
    """A lease that was granted: for which credential, and when on the monotonic clock."""

    fingerprint: bytes
    began: float


def _refusal(problem: Problem, now: datetime) -> Refusal:
    key_id = problem.key_id if isinstance(problem, CredentialRefused) else None
    return Refusal(now, problem.code, key_id)


def _unavailable(error: Exception) -> StoreUnavailable:
    # While a store is down every request fails, and always for the same reason: a traceback each time would bury the
    # rest of the log, and fill a disk that may be full already. A mistake in somebody's code needs its traceback.
    name = type(error).__name__
    if _is_outage(error):
        # The driver's own words. SQLAlchemy's, around them, may quote values such as a digest.
        _log.error("authentication cannot answer: %s: %r", name, error.__cause__ or error)
    else:
        _log.error("authentication cannot answer: %s", name, exc_info=error)
    return StoreUnavailable()


def _check_set_up(store: object, find_owner: object) -> None:
    """Say at once what would otherwise be a 503 for everybody.

    Raises:
        ConfigurationError: The store is none, or a class; `find_owner` is no function.
    """
    if isinstance(store, type | str) or not callable(getattr(store, "find", None)):
        # Not what it is instead: somebody's database URL has a password in it.
        raise ConfigurationError(
            "The store is no key store. Make one first, such as MemoryKeyStore()."
        )
    if not callable(find_owner):
        raise ConfigurationError(
            "find_owner must be a function that returns the Owner with an id, or None."
        )


def _is_outage(error: Exception) -> bool:
    """True if a store failed in a way that its machines can: by the name PEP 249 gives it, or the system."""
    return isinstance(error, OSError) or any(
        kind.__name__ in {"OperationalError", "TimeoutError"} for kind in type(error).__mro__
    )


class Authenticator(_Shared[UserT]):
    """Authenticates requests and manages keys, blocking. Safe to use from several threads.

    Args:
        store: Where the keys are.
        find_owner: The application's user with this id, read afresh; None if there is none.
        tokens: The issuers whose JWTs are accepted; none by default.
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
            narrows access then takes that much longer to return: see `msk_auth.lease`.
        lease_entries: How many verifications are kept; each takes about 1 KiB.

    Raises:
        ConfigurationError: A setting cannot work; the message says what to write instead.
    """

    def __init__(
        self,
        store: KeyStore,
        *,
        find_owner: Callable[[str], Owner[UserT] | None],
        tokens: TokenProfile | Sequence[TokenProfile] = (),
        find_session: Callable[[str], Session | None] | None = None,
        key_limits: KeyLimits | Callable[[], KeyLimits] = _NO_LIMITS,
        key_format: KeyFormat | None = None,
        hasher: KeyHasher | None = None,
        on_event: Callable[[Event], None] | None = None,
        realm: str = "api",
        problem_base: str = PROBLEM_BASE,
        clock: Clock | None = None,
        lease: timedelta | None = None,
        lease_entries: int = 10_000,
    ) -> None:
        _check_set_up(store, find_owner)
        for name, function in {
            "store.find": store.find,
            "find_owner": find_owner,
            "find_session": find_session,
            "key_limits": key_limits,
            "on_event": on_event,
        }.items():
            if inspect.iscoroutinefunction(function):
                raise ConfigurationError(
                    f"{name} is async: use AsyncAuthenticator, or hand in a plain function."
                )
        super().__init__(
            tokens=tokens,
            checks_sessions=find_session is not None,
            key_format=key_format,
            hasher=hasher,
            realm=realm,
            problem_base=problem_base,
            clock=clock,
            lease=lease,
            lease_entries=lease_entries,
        )
        self._ports = SyncPorts(
            store,
            find_owner=find_owner,
            find_session=find_session,
            key_limits=key_limits,
            hasher=self.rules.hasher,
            cache=self._cache,
            clock=self.clock,
        )
        if lease is not None and self._ports.leases is None:
            raise ConfigurationError(_NO_REGISTER)
        self._on_event = on_event
        self._last_flush = self.clock.monotonic()

    def authenticate(self, authorization: Sequence[str | bytes]) -> Principal[UserT]:
        """The principal of a request.

        Args:
            authorization: The value of every `Authorization` header of the request.

        Raises:
            CredentialsMissing: There are none, or of another scheme.
            RequestMalformed: They cannot be read.
            CredentialRefused: They are not accepted; the subclass says why.
            StoreUnavailable: It cannot be told right now.
        """
        fingerprint = None if self._cache is None else self._cache.fingerprint(authorization)
        principal = None
        if self._cache is not None and fingerprint is not None:
            principal = self._cache.find(fingerprint)
        if principal is None:
            principal = self._verify(authorization, fingerprint)
        if self._on_event is not None:
            self._emit(CredentialUsed(self.clock.now(), principal))
        return principal

    def _verify(
        self, authorization: Sequence[str | bytes], fingerprint: bytes | None
    ) -> Principal[UserT]:
        lease = None if fingerprint is None else self._grant_lease(fingerprint)
        now = self.clock.now()
        try:
            outcome = self._drive(flows.authenticate(self.rules, authorization, now))
        except Problem as problem:
            self._emit(_refusal(problem, now))
            raise
        except Exception as error:
            unavailable = _unavailable(error)
            self._emit(_refusal(unavailable, now))
            raise unavailable from error
        return self._settle(outcome, now, lease)

    def _grant_lease(self, fingerprint: bytes) -> _Lease | None:
        """A lease for reads that begin now, once the store knows that this process uses leases."""
        register = self._ports.leases
        if self._cache is None or register is None:
            return None
        if not self._lease_is_recorded:
            try:
                register.raise_longest_lease(self._cache.duration)
            except Exception:  # noqa: BLE001 - without a lease nothing is reused, which is safe
                _log.warning("the lease could not be recorded; not using it", exc_info=True)
                return None
            self._lease_is_recorded = True
        return _Lease(fingerprint, self.clock.monotonic())

    def wait_out_leases(self) -> None:
        """Return when no process can still use anything it read before this call.

        Call it after the application itself narrowed access and committed: disabled a user, took
        away a permission, ended a session. The key operations of this class do it by themselves.
        """
        self._ports.wait_out_leases()

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

    def get_key(self, principal: Principal[UserT], key_id: str) -> ApiKey:
        """A key of the principal's owner.

        Raises:
            KeyNotFound: The owner has no such key.
            StoreUnavailable: It cannot be told right now.
        """
        return self._drive(flows.get_key(principal, key_id))

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
        return self._drive(
            flows.list_keys(principal, status=status, cursor=cursor, limit=limit, now=now)
        )

    def flush(self) -> None:
        """Write the collected times of last use and upgraded digests; what fails is kept for later."""
        self._last_flush = self.clock.monotonic()
        with self._touches.batch() as batch:
            if batch.last_used:
                self._ports.store.touch(batch.last_used)
            for key_id, (old, new) in batch.upgrades.items():
                self._ports.store.replace_digest(key_id, old=old, new=new)

    def flush_if_due(self) -> None:
        """:meth:`flush`, if the last one is a minute ago. Adapters call it after a response."""
        if self.clock.monotonic() - self._last_flush >= _FLUSH_SECONDS:
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
        changed = self._drive(flow)
        self._emit(changed.event)
        return changed.value

    def _emit(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # noqa: BLE001 - a hook never breaks a request
            _log.exception("the on_event hook failed on %s", type(event).__name__)

    def _drive(self, flow: Flow[T]) -> T:
        result: Any = None
        while True:
            # Only the flow's own end may end it: a stray StopIteration of a store must not become a
            # result.
            try:
                step = flow.send(result)
            except StopIteration as stop:
                return cast("T", stop.value)
            result = self._perform(step)

    def _perform(self, step: Step) -> Any:
        try:
            return step.perform(self._ports)
        except Problem:
            raise
        except Exception as error:
            raise _unavailable(error) from error


class AsyncAuthenticator(_Shared[UserT]):
    """Authenticates requests and manages keys, on an asyncio event loop.

    As an asynchronous context manager it writes times of last use once a minute while it is open,
    and the rest when it is closed::

        async with authenticator:
            ...

    Args:
        store: Where the keys are.
        find_owner: The application's user with this id, read afresh; None if there is none.
        tokens: The issuers whose JWTs are accepted; none by default.
        find_session: The login session with this id, read afresh; None if there is none. Without it
            a JWT is good until it expires, whatever happens.
        key_limits: What new keys may be; a function is asked each time, so that a change takes
            effect at once.
        key_format: The prefix of the keys.
        hasher: How keys are digested; give it a pepper ring in production.
        on_event: Told what happened, and awaited if it returns an awaitable; what it raises is
            logged and changes nothing.
        realm: Names the protected space in challenges (RFC 9110, section 11.5).
        problem_base: What the `type` of problem documents begins with.
        clock: Where the time comes from.
        lease: For how long a verification may be reused; None reads the store each time. Whatever
            narrows access then takes that much longer to return: see `msk_auth.lease`.
        lease_entries: How many verifications are kept; each takes about 1 KiB.

    Raises:
        ConfigurationError: A setting cannot work; the message says what to write instead.
    """

    def __init__(
        self,
        store: AsyncKeyStore,
        *,
        find_owner: Callable[[str], Awaitable[Owner[UserT] | None]],
        tokens: TokenProfile | Sequence[TokenProfile] = (),
        find_session: Callable[[str], Awaitable[Session | None]] | None = None,
        key_limits: KeyLimits | Callable[[], Awaitable[KeyLimits]] = _NO_LIMITS,
        key_format: KeyFormat | None = None,
        hasher: KeyHasher | None = None,
        on_event: Callable[[Event], Awaitable[None] | None] | None = None,
        realm: str = "api",
        problem_base: str = PROBLEM_BASE,
        clock: Clock | None = None,
        lease: timedelta | None = None,
        lease_entries: int = 10_000,
    ) -> None:
        _check_set_up(store, find_owner)
        super().__init__(
            tokens=tokens,
            checks_sessions=find_session is not None,
            key_format=key_format,
            hasher=hasher,
            realm=realm,
            problem_base=problem_base,
            clock=clock,
            lease=lease,
            lease_entries=lease_entries,
        )
        self._ports = AsyncPorts(
            store,
            find_owner=find_owner,
            find_session=find_session,
            key_limits=key_limits,
            hasher=self.rules.hasher,
            cache=self._cache,
            clock=self.clock,
        )
        if lease is not None and self._ports.leases is None:
            raise ConfigurationError(_NO_REGISTER)
        self._on_event = on_event
        self._filling: dict[bytes, asyncio.Event] = {}
        self._flusher: asyncio.Task[None] | None = None

    async def authenticate(self, authorization: Sequence[str | bytes]) -> Principal[UserT]:
        """As :meth:`Authenticator.authenticate`."""
        fingerprint = None if self._cache is None else self._cache.fingerprint(authorization)
        principal = None
        if self._cache is not None and fingerprint is not None:
            principal = self._cache.find(fingerprint)
            if principal is None and (filling := self._filling.get(fingerprint)) is not None:
                # Somebody reads for the same credential: look again when they are done.
                await filling.wait()
                principal = self._cache.find(fingerprint)
        if principal is None:
            principal = await self._verify(authorization, fingerprint)
        if self._on_event is not None:
            await self._emit(CredentialUsed(self.clock.now(), principal))
        return principal

    async def _verify(
        self, authorization: Sequence[str | bytes], fingerprint: bytes | None
    ) -> Principal[UserT]:
        if fingerprint is None:
            return await self._verify_alone(authorization, None)
        done = self._filling[fingerprint] = asyncio.Event()
        try:
            return await self._verify_alone(authorization, await self._grant_lease(fingerprint))
        finally:
            if self._filling.get(fingerprint) is done:
                del self._filling[fingerprint]
            done.set()

    async def _verify_alone(
        self, authorization: Sequence[str | bytes], lease: _Lease | None
    ) -> Principal[UserT]:
        now = self.clock.now()
        try:
            outcome = await self._drive(flows.authenticate(self.rules, authorization, now))
        except Problem as problem:
            await self._emit(_refusal(problem, now))
            raise
        except Exception as error:
            unavailable = _unavailable(error)
            await self._emit(_refusal(unavailable, now))
            raise unavailable from error
        return self._settle(outcome, now, lease)

    async def _grant_lease(self, fingerprint: bytes) -> _Lease | None:
        """A lease for reads that begin now, once the store knows that this process uses leases."""
        register = self._ports.leases
        if self._cache is None or register is None:
            return None
        if not self._lease_is_recorded:
            try:
                await register.raise_longest_lease(self._cache.duration)
            except Exception:  # noqa: BLE001 - without a lease nothing is reused, which is safe
                _log.warning("the lease could not be recorded; not using it", exc_info=True)
                return None
            self._lease_is_recorded = True
        return _Lease(fingerprint, self.clock.monotonic())

    async def wait_out_leases(self) -> None:
        """As :meth:`Authenticator.wait_out_leases`."""
        await self._ports.wait_out_leases()

    async def create_key(
        self,
        principal: Principal[UserT],
        *,
        name: str,
        scopes: Iterable[str] | None = None,
        lifetime: Lifetime = "default",
    ) -> CreatedKey:
        """As :meth:`Authenticator.create_key`."""
        now = self.clock.now()
        return await self._change(
            flows.create_key(
                self.rules, principal, name=name, scopes=scopes, lifetime=lifetime, now=now
            )
        )

    async def rotate_key(
        self, principal: Principal[UserT], key_id: str, *, overlap: timedelta = timedelta(0)
    ) -> CreatedKey:
        """As :meth:`Authenticator.rotate_key`."""
        now = self.clock.now()
        return await self._change(
            flows.rotate_key(self.rules, principal, key_id, overlap=overlap, now=now)
        )

    async def revoke_key(self, principal: Principal[UserT], key_id: str) -> ApiKey:
        """As :meth:`Authenticator.revoke_key`."""
        return await self._change(flows.revoke_key(principal, key_id, now=self.clock.now()))

    async def delete_key(self, principal: Principal[UserT], key_id: str) -> None:
        """As :meth:`Authenticator.delete_key`."""
        await self._change(flows.delete_key(principal, key_id, now=self.clock.now()))

    async def expire_key(self, principal: Principal[UserT], key_id: str, *, at: datetime) -> ApiKey:
        """As :meth:`Authenticator.expire_key`."""
        return await self._change(flows.expire_key(principal, key_id, at=at, now=self.clock.now()))

    async def get_key(self, principal: Principal[UserT], key_id: str) -> ApiKey:
        """As :meth:`Authenticator.get_key`."""
        return await self._drive(flows.get_key(principal, key_id))

    async def list_keys(
        self,
        principal: Principal[UserT],
        *,
        status: KeyStatus | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> KeyPage:
        """As :meth:`Authenticator.list_keys`."""
        now = self.clock.now()
        return await self._drive(
            flows.list_keys(principal, status=status, cursor=cursor, limit=limit, now=now)
        )

    async def flush(self) -> None:
        """As :meth:`Authenticator.flush`."""
        with self._touches.batch() as batch:
            if batch.last_used:
                await self._ports.store.touch(batch.last_used)
            for key_id, (old, new) in batch.upgrades.items():
                await self._ports.store.replace_digest(key_id, old=old, new=new)

    async def __aenter__(self) -> AsyncAuthenticator[UserT]:
        # An application and its adapter may both open it.
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush_forever(), name="msk_auth flush")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._flusher is not None:
            self._flusher.cancel()
            # `wait` raises nothing of the task's; a cancellation of the caller still gets through.
            await asyncio.wait([self._flusher])
            self._flusher = None
        await self.flush()

    async def _flush_forever(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            await self.flush()

    async def _change(self, flow: Flow[Changed[T]]) -> T:
        changed = await self._drive(flow)
        await self._emit(changed.event)
        return changed.value

    async def _emit(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            told = self._on_event(event)
            if told is not None:
                await told
        except Exception:  # noqa: BLE001 - a hook never breaks a request
            _log.exception("the on_event hook failed on %s", type(event).__name__)

    async def _drive(self, flow: Flow[T]) -> T:
        result: Any = None
        while True:
            # Only the flow's own end may end it: a stray StopIteration of a store must not become a
            # result.
            try:
                step = flow.send(result)
            except StopIteration as stop:
                return cast("T", stop.value)
            result = await self._perform(step)

    async def _perform(self, step: Step) -> Any:
        try:
            return await step.perform(self._ports)
        except Problem:
            raise
        except Exception as error:
            raise _unavailable(error) from error
