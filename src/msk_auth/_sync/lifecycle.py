"""Opening and closing an authenticator that blocks, written by hand; `_async.lifecycle` is its counterpart."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self

from msk_auth.authenticator.base import FLUSH_SECONDS, BaseAuthenticator
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import UserT


def check_kind(name: str, authenticator: object) -> None:
    """Refuse an authenticator that awaits, for a class that blocks.

    Args:
        name: Of the class.
        authenticator: What it was given.

    Raises:
        ConfigurationError: It is no `Authenticator`.
    """
    if not isinstance(authenticator, Lifecycle):
        raise ConfigurationError(f"{name} takes an Authenticator. Use Async{name}.")


class Lifecycle(BaseAuthenticator[UserT]):
    """What an authenticator does between its opening and its closing: an adapter flushes it after responses."""

    @property
    def is_flush_due(self) -> bool:
        """True if the last :meth:`flush` was a minute ago."""
        return self.clock.monotonic() - self._last_flush >= FLUSH_SECONDS

    def flush_if_due(self) -> None:
        """Call :meth:`flush` if the last call was a minute ago. Adapters do this after a response."""
        if self.is_flush_due:
            self.flush()

    @abstractmethod
    def flush(self) -> None:
        """See :class:`Authenticator`."""

    def __enter__(self) -> Self:
        self._open_issuers()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close_issuers()
        self.flush()

    def _begin_closed(self) -> None:
        self._last_flush = self.clock.monotonic()

    def _note_flush(self) -> None:
        self._last_flush = self.clock.monotonic()
