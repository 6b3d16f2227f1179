"""A blocking authenticator as an event loop may use it: what blocks runs in threads.

A synchronous application on an asynchronous framework needs no second engine, and so no second pool of connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from msk_auth._fork import abandon, after_fork_in_child
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import ApiKey, ExternalIdentity, Owner, Principal, Session, UserT
from msk_auth.core.policy import Policy
from msk_auth.ports import SyncPorts
from msk_auth.watch import LOOK_UPS_AT_ONCE, AsyncWatches

from .awaiting import AsyncAuthenticator, is_beside_loop

if TYPE_CHECKING:
    from .blocking import Authenticator

T = TypeVar("T")
R = TypeVar("R")

RunInThread: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function in a thread, and returns an awaitable of its result, such as `anyio.to_thread.run_sync`."""


_SHARED = (
    "profiles",
    "issuers",
    "rules",
    "users",
    "realm",
    "problem_base",
    "clock",
    "cached_principal",
    "takes_address",
    "activity",
)


class OffLoopAuthenticator(AsyncAuthenticator[UserT]):
    """An `Authenticator` for an event loop. Made by :meth:`Authenticator.off_loop`.

    Each operation is one call of the blocking authenticator in one thread, whatever a subclass of the application has made
    of it. Verifications under a lease, and malformed headers, need no thread.

    Args:
        blocking: Does the work.
        ports: Those of `blocking`, for watches.
        watch_interval: In seconds.
        run: Runs it in a thread.
    """

    # It has no ports of its own, so the initializer of the base class has nothing to do here.
    def __init__(
        self,
        blocking: Authenticator[UserT],
        ports: SyncPorts[UserT],
        *,
        watch_interval: float,
        run: RunInThread,
    ) -> None:
        vars(self).update((name, getattr(blocking, name)) for name in _SHARED)
        self._blocking = blocking
        self._run = run
        self._begin_closed()
        self._watches: AsyncWatches[UserT] = AsyncWatches(
            self.rules, _OffLoopReads(ports), self.clock, watch_interval
        )

    def authorize(self, principal: Principal[UserT], policy: Policy) -> None:
        self._blocking.authorize(principal, policy)

    async def authenticate(
        self, authorization: Sequence[str | bytes], *more: Any, **named: Any
    ) -> Principal[UserT]:
        principal = self.cached_principal(authorization)
        if principal is None:
            principal = await self._call("authenticate", authorization, *more, **named)
        return principal

    def reference(self, *args: Any, **kwargs: Any) -> str:
        return self._blocking.reference(*args, **kwargs)

    def resume(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("resume", *args, **kwargs)

    def await_lease_expiry(self) -> Any:
        return self._call("await_lease_expiry")

    def create_key(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("create_key", *args, **kwargs)

    def rotate_key(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("rotate_key", *args, **kwargs)

    def revoke_key(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("revoke_key", *args, **kwargs)

    def delete_key(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("delete_key", *args, **kwargs)

    def expire_key(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("expire_key", *args, **kwargs)

    def update_key(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("update_key", *args, **kwargs)

    def revoke_presented_key(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("revoke_presented_key", *args, **kwargs)

    def revoke_leaked(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("revoke_leaked", *args, **kwargs)

    def forget_owner(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("forget_owner", *args, **kwargs)

    def get_key(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("get_key", *args, **kwargs)

    def key_activity(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("key_activity", *args, **kwargs)

    def list_keys(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("list_keys", *args, **kwargs)

    def flush(self) -> Any:
        return self._call("flush")

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

    keys_at_once: int = SyncPorts.keys_at_once

    def __init__(self, ports: SyncPorts[Any]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._ports = ports
        # It starts threads on first use, and serves every event loop.
        self._make_threads = partial(ThreadPoolExecutor, LOOK_UPS_AT_ONCE, "msk_auth watch")
        self._threads = self._make_threads()
        after_fork_in_child(self._renew)

    def find_keys(self, key_ids: Sequence[str]) -> Awaitable[Sequence[ApiKey | None]]:
        return self._call(self._ports.find_keys, key_ids)

    def find_session(self, session_id: str) -> Awaitable[Session | None]:
        return self._call(self._ports.find_session, session_id)

    def find_owner(self, owner_id: str) -> Awaitable[Owner[Any] | None]:
        return self._call(self._ports.find_owner, owner_id)

    def find_external_owner(self, identity: ExternalIdentity) -> Awaitable[Owner[Any] | None]:
        return self._call(self._ports.find_external_owner, identity)

    def _call(self, look_up: Callable[[T], R], name: T) -> Awaitable[R]:
        import asyncio

        return asyncio.get_running_loop().run_in_executor(self._threads, look_up, name)

    def _renew(self) -> None:
        abandon(self._threads)
        self._threads = self._make_threads()
