"""The application's users, looked up by their primary key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from inspect import isawaitable
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from sqlalchemy import Select, bindparam, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, class_mapper

from msk_auth._async.users import AsyncUsers
from msk_auth._callables import returns_awaitable
from msk_auth._sync.users import Users
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import Login, Owner, UserT

LoadedT = TypeVar("LoadedT")
SourceT = TypeVar("SourceT")

_Key: TypeAlias = int | str | UUID

_KINDS: Final = (int, str, UUID)
_NAME: Final = "msk_auth_name"


class ModelUsers(Users[Session, str, LoadedT, UserT]):
    """A `find_owner` that reads the user by the primary key: :class:`~msk_auth.Users` with the usual `load_user`.

    ::

        users = ModelUsers(User, owner_of, sessionmaker(engine))
        authenticator = Authenticator(store, find_owner=users)

    The id of an owner is the text of the key, as `str(user.id)` makes it. An id that is no such text, such as the email
    address in a token of another purpose, is no user's.

    Args:
        model: The mapped class. Its primary key is one column of integers, texts or UUIDs.
        owner_of: What decides about a user. Leave the user out of it.
        new_session: Makes the session of a look-up outside of a request, such as `sessionmaker(engine)`. It is closed
            afterwards.

    Raises:
        ConfigurationError: The class is not mapped or has another kind of primary key, or an argument is no function or is
            async.
    """

    def __init__(
        self,
        model: type[LoadedT],
        owner_of: Callable[[LoadedT], Owner[UserT]],
        new_session: Callable[[], AbstractContextManager[Session]],
    ) -> None:
        kind = _kind_of_key(model, "Users")

        def load_user(session: Session, user_id: str) -> LoadedT | None:
            key = _key(kind, user_id)
            return None if key is None else session.get(model, key)

        super().__init__(load_user, owner_of, new_session)
        self._model = model

    def logins_by(
        self, attribute: str, login: Callable[[SourceT], Login | None]
    ) -> Callable[[SourceT], Login | None]:
        """A function for `logins` where tokens name the user by something other than the id, such as an email address.

        ::

            logins = [users.logins_by("email", login_of_token)]

        It reads the id with one query, in a new session. A login that names no user, or several, is none. Keys belong to
        the id, so they stay with the user when the other name changes.

        Args:
            attribute: The attribute of the model that the `owner_id` of the function's logins has the value of. It should be
                unique, and is best indexed.
            login: What `logins` would take otherwise. It is not async.

        Raises:
            ConfigurationError: The model has no such column, or `login` is no function or async.
        """
        ids = _ids_by(self._model, attribute)
        given: object = login
        if not callable(given) or returns_awaitable(given) is True:
            raise ConfigurationError(
                "logins_by takes a plain function that returns a Login or None."
            )

        def find_login(source: SourceT) -> Login | None:
            found = login(source)
            if found is None:
                return None
            with self._new_session() as session:
                return _named(found, session.scalars(ids, {_NAME: found.owner_id}).all())

        return find_login


class AsyncModelUsers(AsyncUsers[AsyncSession, str, LoadedT, UserT]):
    """A `find_owner` that reads the user by the primary key: :class:`~msk_auth.AsyncUsers` with the usual `load_user`.

    ::

        users = AsyncModelUsers(User, owner_of, async_sessionmaker(engine))
        authenticator = AsyncAuthenticator(store, find_owner=users)

    The id of an owner is the text of the key, as `str(user.id)` makes it. An id that is no such text, such as the email
    address in a token of another purpose, is no user's.

    Args:
        model: The mapped class. Its primary key is one column of integers, texts or UUIDs. What `owner_of` reads is loaded
            with it.
        owner_of: What decides about a user. Leave the user out of it. It is not async.
        new_session: Makes the session of a look-up outside of a request, such as `async_sessionmaker(engine)`. It is closed
            afterwards.

    Raises:
        ConfigurationError: The class is not mapped or has another kind of primary key, or an argument is no function, or
            `owner_of` is async.
    """

    def __init__(
        self,
        model: type[LoadedT],
        owner_of: Callable[[LoadedT], Owner[UserT]],
        new_session: Callable[[], AbstractAsyncContextManager[AsyncSession]],
    ) -> None:
        kind = _kind_of_key(model, "AsyncUsers")

        async def load_user(session: AsyncSession, user_id: str) -> LoadedT | None:
            key = _key(kind, user_id)
            return None if key is None else await session.get(model, key)

        super().__init__(load_user, owner_of, new_session)
        self._model = model

    def logins_by(
        self, attribute: str, login: Callable[[SourceT], Login | Awaitable[Login | None] | None]
    ) -> Callable[[SourceT], Awaitable[Login | None]]:
        """A function for `logins` where tokens name the user by something other than the id, such as an email address.

        ::

            logins = [users.logins_by("email", login_of_token)]

        It reads the id with one query, in a new session. A login that names no user, or several, is none. Keys belong to
        the id, so they stay with the user when the other name changes.

        Args:
            attribute: The attribute of the model that the `owner_id` of the function's logins has the value of. It should be
                unique, and is best indexed.
            login: What `logins` would take otherwise. It may be async.

        Raises:
            ConfigurationError: The model has no such column, or `login` is no function.
        """
        ids = _ids_by(self._model, attribute)
        given: object = login
        if not callable(given):
            raise ConfigurationError("logins_by takes a function that returns a Login or None.")

        async def find_login(source: SourceT) -> Login | None:
            found = login(source)
            if isawaitable(found):
                found = await found
            if found is None:
                return None
            async with self._new_session() as session:
                named = await session.scalars(ids, {_NAME: found.owner_id})
                return _named(found, named.all())

        return find_login


def _ids_by(model: type[Any], attribute: str) -> Select[Any]:
    """Reads the primary keys of the users, at most two, whose attribute has the value of a parameter."""
    mapper = class_mapper(model, configure=False)
    try:
        column = mapper.columns[attribute]
    except KeyError:
        raise ConfigurationError(
            f"{model!r} has no column {attribute!r}. Name the one that your logins have in owner_id."
        ) from None
    (key,) = mapper.primary_key
    return select(key).where(column == bindparam(_NAME)).limit(2)


def _named(login: Login, ids: Sequence[object]) -> Login | None:
    # Which of several is meant would be a guess.
    return replace(login, owner_id=str(ids[0])) if len(ids) == 1 else None


def _kind_of_key(model: type[Any], general: str) -> type[_Key]:
    kind: type[Any] | None
    try:
        # The mappers are configured later, when all modules of the application are imported.
        (column,) = class_mapper(model, configure=False).primary_key
        kind = column.type.python_type
    except (SQLAlchemyError, NotImplementedError, ValueError):
        kind = None
    if kind is None or kind not in _KINDS:
        raise ConfigurationError(
            f"{model!r} is no mapped class whose primary key is one column of integers, texts or UUIDs. Write"
            f" {general}(load_user, owner_of, new_session) with a function that loads the user."
        )
    return kind


def _key(kind: type[_Key], user_id: str) -> _Key | None:
    """The key that an id is the text of, or None if it is of none."""
    try:
        key = kind(user_id)
    except ValueError:
        return None
    # `int` and `UUID` read other spellings too, and one user has one id.
    return key if str(key) == user_id else None
