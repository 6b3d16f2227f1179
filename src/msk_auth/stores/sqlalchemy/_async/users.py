"""The application's users, looked up by their primary key, or by another column."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from sqlalchemy import bindparam, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import class_mapper
from sqlalchemy.sql import Select

from msk_auth._async.primitives import MaybeAwaitable, result_of
from msk_auth._async.users import AsyncUsers
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import Login, Owner, UserT, is_same_id

from .running import AsyncSession

LoadedT = TypeVar("LoadedT")
SourceT = TypeVar("SourceT")

_Key: TypeAlias = int | str | UUID

_KINDS: Final = (int, str, UUID)
_NAME: Final = "msk_auth_name"
"""The parameter of :func:`_ids_by`."""


class AsyncModelUsers(AsyncUsers[AsyncSession, str, LoadedT, UserT]):
    """A `find_owner` that reads the user by the primary key: :class:`~msk_auth.AsyncUsers` with the usual `load_user`.

    ::

        users = AsyncModelUsers(User, owner_of, async_sessionmaker(engine))
        authenticator = AsyncAuthenticator(store, find_owner=users)

    The id of an owner is the text `str(user.id)` of the primary key. Another text, such as the email
    address in a token for another purpose, belongs to no user.

    Args:
        model: The mapped class. Its primary key is one column of integers, texts or UUIDs. It must load everything that
            `owner_of` reads.
        owner_of: Returns the owner for a user, without the user object. Not async.
        new_session: Makes the session of a look-up outside of a request, such as `async_sessionmaker(engine)`. The session is
            closed afterwards.

    Raises:
        ConfigurationError: The class is not mapped or has another kind of primary key, or an argument is not a function, or
            `owner_of` is async.
    """

    def __init__(
        self,
        model: type[LoadedT],
        owner_of: Callable[[LoadedT], Owner[UserT]],
        new_session: Callable[[], AbstractAsyncContextManager[AsyncSession]],
    ) -> None:
        kind = _kind_of_key(model)

        async def load_user(session: AsyncSession, user_id: str) -> LoadedT | None:
            key = _key_of(kind, user_id)
            return None if key is None else await session.get(model, key)

        super().__init__(load_user, owner_of, new_session)
        self._model = model

    def logins_by(
        self, attribute: str, login: Callable[[SourceT], MaybeAwaitable[Login | None]]
    ) -> Callable[[SourceT], Awaitable[Login | None]]:
        """A function for `logins` if tokens name the user by another value than the id, such as an email address.

        ::

            logins = [users.logins_by("email", login_of_token)]

        The function reads the id with one query, in a new session. It returns None if the login names no user, or several. Keys
        belong to the id, so they stay with the user when the other value changes.

        Args:
            attribute: The attribute of the model with the value in the logins' `owner_id`. It should be unique and indexed.
            login: A function as for `logins`. It may be async.

        Raises:
            ConfigurationError: The model has no such column.
        """
        ids = _ids_by(self._model, attribute)

        async def find_login(source: SourceT) -> Login | None:
            found = await result_of(login(source))
            if found is None:
                return None
            async with self._new_session() as session:
                rows = await session.scalars(ids, {_NAME: found.owner_id})
                named = rows.all()
            # Choosing one of several users would be a guess.
            return replace(found, owner_id=str(named[0])) if len(named) == 1 else None

        return find_login


def _ids_by(model: type[Any], attribute: str) -> Select[Any]:
    """Selects the primary keys of at most two users whose attribute has the value of a parameter."""
    mapper = class_mapper(model, configure=False)
    column = mapper.columns.get(attribute)
    if column is None:
        raise ConfigurationError(
            f"{model!r} has no column {attribute!r}. Name the column of the value in your logins' owner_id."
        )
    (key,) = mapper.primary_key
    return select(key).where(column == bindparam(_NAME)).limit(2)


def _kind_of_key(model: type[Any]) -> type[_Key]:
    kind: type[Any] | None = None
    with suppress(SQLAlchemyError, NotImplementedError, ValueError):
        # The mappers are configured later, when all modules of the application are imported.
        (column,) = class_mapper(model, configure=False).primary_key
        kind = column.type.python_type
    if kind is None or kind not in _KINDS:
        raise ConfigurationError(
            f"{model!r} is not a mapped class whose primary key is one column of integers, texts or UUIDs. Write"
            f" {AsyncUsers.__name__}(load_user, owner_of, new_session) with a function that loads the user."
        )
    return kind


def _key_of(kind: type[_Key], user_id: str) -> _Key | None:
    """The primary key with this text, or None."""
    try:
        key = kind(user_id)
    except ValueError:
        return None
    # `int` and `UUID` accept other texts too, such as "+1_0".
    return key if is_same_id(str(key), user_id) else None
