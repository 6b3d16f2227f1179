"""The two routes that need no login, for the adapters of frameworks on an event loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from msk_auth.http.leak_routes import leak_route, revocation_route
from msk_auth.http.routes import Route
from msk_auth.leaks import AsyncGitHubLeakReceiver, GitHubLeakReceiver

from ._asgi import call_awaited

MountedT = TypeVar("MountedT")
"""What an application of the framework takes as a route."""

RequestT = TypeVar("RequestT")


class PublicRoutes(ABC, Generic[MountedT, RequestT]):
    """The routes that need no login. An adapter mounts them."""

    def revocation_route(
        self, *, path: str = "/api/revoke", throttle: Callable[[RequestT], object] | None
    ) -> MountedT:
        """A route that revokes the key in the body, without a login: `POST` with `token=…` as a form, or as JSON.

        The answer is the same whether the key exists or not (RFC 7009, section 2.2). What is no complete key is refused:
        that needs no look-up.

        Args:
            path: Where to serve it.
            throttle: Called with each request first; it raises :class:`~msk_auth.errors.TooManyAttempts` for one too many.
                Either `async`, or blocking: then it runs in a thread. Pass None if something in front of the application
                limits requests already.

        Raises:
            ConfigurationError: The path does not begin with a slash, or ends with one.
        """
        return self._mount_public(revocation_route(path), throttle)

    def leak_route(
        self,
        receiver: AsyncGitHubLeakReceiver | GitHubLeakReceiver,
        *,
        path: str = "/api/leaks/github",
        throttle: Callable[[RequestT], object] | None,
    ) -> MountedT:
        """A route that receives the reports of GitHub's secret scanning. It is public, and takes signed reports only.

        Args:
            receiver: Checks the reports and revokes the keys.
            path: Where to serve it.
            throttle: As for :meth:`revocation_route`.

        Raises:
            ConfigurationError: The path does not begin with a slash, or ends with one, or there is no receiver.
        """
        row = leak_route(
            path, receiver, (AsyncGitHubLeakReceiver, GitHubLeakReceiver), call_awaited
        )
        return self._mount_public(row, throttle)

    @abstractmethod
    def _mount_public(self, row: Route, throttle: Callable[[RequestT], object] | None) -> MountedT:
        """A row of the table as a route of the framework."""
