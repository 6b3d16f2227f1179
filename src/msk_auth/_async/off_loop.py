"""A blocking authenticator as an event loop may use it: what blocks runs in threads.

A synchronous application on an asynchronous framework needs no second engine, and so no second pool of connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import iscoroutinefunction, unwrap
from typing import Any, Final, TypeAlias, TypeVar

from msk_auth._fork import abandon, after_fork_in_child
from msk_auth._sync.authenticator import Authenticator
from msk_auth._sync.verification import Reads
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import ApiKey, ExternalIdentity, Owner, Principal, Session, UserT

from .authenticator import AsyncAuthenticator
from .primitives import is_beside_loop
from .watch import LOOK_UPS_AT_ONCE, AsyncWatches

T = TypeVar("T")
R = TypeVar("R")

RunInThread: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function in a thread, and returns an awaitable of its result, such as `anyio.to_thread.run_sync`."""

_SHARED: Final = (
    "profiles",
    "issuers",
    "rules",
    "users",
    "realm",
    "clock",
    "cached_principal",
    "takes_address",
    "authorize",
    "reference",
)
# The two authenticators have the same methods.
_IN_THREAD: Final = tuple(
    name
    for name, method in vars(AsyncAuthenticator).items()
    if name[0] != "_" and name != "authenticate" and iscoroutinefunction(unwrap(method))
)


class OffLoopAuthenticator(AsyncAuthenticator[UserT]):
    """An `Authenticator` for an event loop. What an adapter for an event loop makes of it.

    Each operation is one call of the blocking authenticator in one thread, whatever a subclass of the application has made
    of it. Verifications under a lease, and malformed headers, need no thread.

    Args:
        blocking: Does the work.
        run: Runs it in a thread.
    """

    # It has no ports of its own, so the initializer of the base class has nothing to do here.
    def __init__(self, blocking: Authenticator[UserT], run: RunInThread) -> None:
        vars(self).update((name, getattr(blocking, name)) for name in _SHARED)
        vars(self).update((name, partial(self._call, name)) for name in _IN_THREAD)
        self._blocking = blocking
        self._run = run
        self._begin_closed()
        parts: Any = blocking
        reads, interval = parts._look_ups, parts._watch_interval  # noqa: SLF001 - its counterpart's
        self._watches: AsyncWatches[UserT] = AsyncWatches(
            self.rules, _OffLoopReads(reads), self.clock, interval
        )

    async def authenticate(
        self, authorization: Sequence[str | bytes], *more: Any, **named: Any
    ) -> Principal[UserT]:
        """As `Authenticator` does it."""
        principal = self.cached_principal(authorization)
        if principal is None:
            principal = await self._call("authenticate", authorization, *more, **named)
        return principal

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        if is_beside_loop():
            raise ConfigurationError(
                f"{name} of an adapter's authenticator has to be awaited, and was called in a `def` route. Call"
                f" auth.blocking.{name}(…) there: the Authenticator that you gave to the adapter."
            )
        return self._run(partial(getattr(self._blocking, name), *args, **kwargs))


class _OffLoopReads:
    """The look-ups of a round of watches. They have threads of their own: those that hang must take none from requests.

    Attributes:
        keys_at_once: How many keys one call of :meth:`find_keys` may look up.
    """

    keys_at_once: int = 1

    def __init__(self, reads: Reads) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._reads = reads
        # It starts threads on first use, and serves every event loop.
        self._make_threads = partial(ThreadPoolExecutor, LOOK_UPS_AT_ONCE, "msk_auth watch")
        self._threads = self._make_threads()
        after_fork_in_child(self._renew)

    async def find_keys(self, key_ids: Sequence[str]) -> Sequence[ApiKey | None]:
        return [await self._call(self._reads.find_key, key_id) for key_id in key_ids]

    def find_session(self, session_id: str) -> Awaitable[Session | None]:
        return self._call(self._reads.find_session, session_id)

    def find_owner(self, owner_id: str) -> Awaitable[Owner[Any] | None]:
        return self._call(self._reads.find_owner, owner_id)

    def find_external_owner(self, identity: ExternalIdentity) -> Awaitable[Owner[Any] | None]:
        return self._call(self._reads.find_external_owner, identity)

    def _call(self, look_up: Callable[[T], R], name: T) -> Awaitable[R]:
        import asyncio

        return asyncio.get_running_loop().run_in_executor(self._threads, look_up, name)

    def _renew(self) -> None:
        abandon(self._threads)
        self._threads = self._make_threads()
