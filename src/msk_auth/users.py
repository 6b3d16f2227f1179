"""Reads the application's users in the request's session, or in a new session.

A user object belongs to one session, and so to one request. Objects that outlive a request, such as a principal under a lease,
have only the :class:`~msk_auth.Owner` that the application makes of the user.
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
    """The session of one request, kept only with the request.

    Attributes:
        find: Finds the application's session of the request. Called once, at the first read.
        users: The loaded users, by the ids of their owners.
    """

    find: Callable[[], Any]
    users: dict[str, Any] = field(default_factory=dict[str, Any])

    @cached_property
    def session(self) -> Any:
        """The application's session. The library neither commits nor closes it."""
        return self.find()


class BaseUsers(Generic[LoadedT, UserT]):
    """The common base of `Users` and `AsyncUsers`."""

    owner_of: Callable[[LoadedT], Owner[UserT]]
    load_user: Callable[..., Any]
    find_in: Callable[..., Any]


AnyUsers: TypeAlias = BaseUsers[Any, Any]


def users_in(look_up: object) -> AnyUsers | None:
    """The `Users` or `AsyncUsers` behind a `find_owner` or `find_external_owner`, or None for another function."""
    found: Any = look_up
    return found if isinstance(look_up, BaseUsers) else None


def in_session_of(request: RequestSession, look_up: T) -> T:
    """A `find_owner` or `find_external_owner` for one request, which reads users in its session."""
    users = users_in(look_up)
    return look_up if users is None else cast("T", partial(users.find_in, request))
