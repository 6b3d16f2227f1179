"""The application's users, read in a session: the request's own where there is one, otherwise a new one.

A user object belongs to one session, and so to one request. What outlives a request, a principal under a lease for example,
has only the :class:`~msk_auth.Owner` that the application makes of the user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Generic, TypeAlias, TypeGuard, TypeVar, cast

from ._callables import returns_awaitable
from .core.errors import ConfigurationError
from .core.model import ExternalIdentity, Owner, UserT

SessionT = TypeVar("SessionT")
SubjectT = TypeVar("SubjectT", bound=str | ExternalIdentity)
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


class Users(Generic[SessionT, SubjectT, LoadedT, UserT]):
    """A `find_owner` that reads the application's user in a session, for :class:`Authenticator`.

    ::

        def load_user(session: Session, user_id: str) -> User | None:
            return session.get(User, int(user_id))


        def owner_of(user: User) -> Owner[None]:
            return Owner(str(user.id), permissions_of(user), None, disabled=not user.is_active)


        users = Users(load_user, owner_of, sessionmaker(engine))
        authenticator = Authenticator(store, find_owner=users)

    An adapter that knows the session of a request reads the user there, once: the look-up that decides about the request also
    loads the object that `user` of the adapter gives to its routes. Under a lease, which other requests share, and outside
    of requests, the owner is read in a new session.

    It is a `find_external_owner` as well, where `load_user` takes the :class:`~msk_auth.ExternalIdentity` in place of the id. One
    that creates the user commits the session: a new one is closed without that.

    Args:
        load_user: Returns the user with an id, None if there is none. Besides the id it takes the session.
        owner_of: What decides about a user. Leave the user out of it.
        new_session: Makes the session of a look-up outside of a request, such as `sessionmaker(engine)`. It is closed
            afterwards.

    Raises:
        ConfigurationError: An argument is no function, or is async.
    """

    def __init__(
        self,
        load_user: Callable[[SessionT, SubjectT], LoadedT | None],
        owner_of: Callable[[LoadedT], Owner[UserT]],
        new_session: Callable[[], AbstractContextManager[SessionT]],
    ) -> None:
        _check(owner_of)
        if returns_awaitable(load_user) is True:
            raise ConfigurationError(
                "load_user is async. Use AsyncUsers, or pass a plain function."
            )
        self.load_user = load_user
        self.owner_of = owner_of
        self._new_session = new_session

    def __call__(self, subject: SubjectT) -> Owner[UserT] | None:
        """The owner with an id or an external identity, read in a new session."""
        with self._new_session() as session:
            user = self.load_user(session, subject)
            return None if user is None else self.owner_of(user)

    def find_in(self, request: RequestSession, subject: SubjectT) -> Owner[UserT] | None:
        """The owner with an id or an external identity, read anew in the session of a request, which keeps the user."""
        user = self.load_user(request.session, subject)
        return None if user is None else _keep(request, user, self.owner_of(user))


class AsyncUsers(Generic[SessionT, SubjectT, LoadedT, UserT]):
    """A `find_owner` that reads the application's user in a session, for :class:`AsyncAuthenticator`.

    ::

        async def load_user(session: AsyncSession, user_id: str) -> User | None:
            return await session.get(User, int(user_id))


        def owner_of(user: User) -> Owner[None]:
            return Owner(str(user.id), permissions_of(user), None, disabled=not user.is_active)


        users = AsyncUsers(load_user, owner_of, async_sessionmaker(engine))
        authenticator = AsyncAuthenticator(store, find_owner=users)

    An adapter that knows the session of a request reads the user there, once: the look-up that decides about the request also
    loads the object that `user` of the adapter gives to its routes. Under a lease, which other requests share, and outside
    of requests, the owner is read in a new session.

    It is a `find_external_owner` as well, where `load_user` takes the :class:`~msk_auth.ExternalIdentity` in place of the id. One
    that creates the user commits the session: a new one is closed without that.

    Args:
        load_user: Returns the user with an id, None if there is none. Besides the id it takes the session. Async.
        owner_of: What decides about a user. Leave the user out of it. It is not async, so what it needs is loaded with the
            user.
        new_session: Makes the session of a look-up outside of a request, such as `async_sessionmaker(engine)`. It is closed
            afterwards.

    Raises:
        ConfigurationError: An argument is no function, `load_user` is certainly not async, or `owner_of` is async.
    """

    def __init__(
        self,
        load_user: Callable[[SessionT, SubjectT], Awaitable[LoadedT | None]],
        owner_of: Callable[[LoadedT], Owner[UserT]],
        new_session: Callable[[], AbstractAsyncContextManager[SessionT]],
    ) -> None:
        _check(owner_of)
        if returns_awaitable(load_user) is False:
            raise ConfigurationError(
                "load_user is not async. Use Users, or pass an async function."
            )
        self.load_user = load_user
        self.owner_of = owner_of
        self._new_session = new_session

    async def __call__(self, subject: SubjectT) -> Owner[UserT] | None:
        """The owner with an id or an external identity, read in a new session."""
        async with self._new_session() as session:
            user = await self.load_user(session, subject)
            return None if user is None else self.owner_of(user)

    async def find_in(self, request: RequestSession, subject: SubjectT) -> Owner[UserT] | None:
        """The owner with an id or an external identity, read anew in the session of a request, which keeps the user."""
        user = await self.load_user(request.session, subject)
        return None if user is None else _keep(request, user, self.owner_of(user))


AnyUsers: TypeAlias = Users[Any, Any, Any, Any] | AsyncUsers[Any, Any, Any, Any]


def users_in(look_up: object) -> AnyUsers | None:
    """The users that a `find_owner` or `find_external_owner` is, or None if it is another function."""
    return look_up if _is_users(look_up) else None


def in_session_of(request: RequestSession, look_up: T) -> T:
    """A `find_owner` or `find_external_owner` for one request: what reads users reads them in its session."""
    return cast("T", partial(look_up.find_in, request)) if _is_users(look_up) else look_up


def _keep(request: RequestSession, user: object, owner: Owner[UserT]) -> Owner[UserT]:
    request.users[owner.id] = user
    return owner


def _is_users(value: object) -> TypeGuard[AnyUsers]:
    return isinstance(value, Users | AsyncUsers)


def _check(owner_of: object) -> None:
    if returns_awaitable(owner_of) is True:
        raise ConfigurationError(
            "owner_of is async. Pass a plain function: what it needs belongs into load_user."
        )
