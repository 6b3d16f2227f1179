"""The application's users, read in a session: the request's own where there is one, otherwise a new one.

A user object belongs to one session, and so to one request. What outlives a request, a principal under a lease for example,
has only the :class:`~msk_auth.Owner` that the application makes of the user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, TypeAlias, TypeVar, cast

from .core.model import Owner, UserT

LoadedT = TypeVar("LoadedT")
T = TypeVar("T")


@dataclass
class RequestSession:
    """The session of one request. It is kept with the request, and nowhere else.

    Attributes:
        find: Finds the application's session of the request. Called once, when something is read in it.
        users: The users that were loaded in it, by the ids of their owners.
    """

    find: Callable[[], Any]
    users: dict[str, Any] = field(default_factory=dict[str, Any])

    @cached_property
    def session(self) -> Any:
        """The application's session. It is neither committed nor closed here."""
        return self.find()


class BaseUsers(Generic[LoadedT, UserT]):
    """What `Users` and `AsyncUsers` have in common."""

    owner_of: Callable[[LoadedT], Owner[UserT]]
    load_user: Callable[..., Any]
    find_in: Callable[..., Any]


AnyUsers: TypeAlias = BaseUsers[Any, Any]


def users_in(look_up: object) -> AnyUsers | None:
    """The users that a `find_owner` or `find_external_owner` is, or None if it is another function."""
    found: Any = look_up
    return found if isinstance(look_up, BaseUsers) else None


def in_session_of(request: RequestSession, look_up: T) -> T:
    """A `find_owner` or `find_external_owner` for one request: what reads users reads them in its session."""
    users = users_in(look_up)
    return look_up if users is None else cast("T", partial(users.find_in, request))
