"""The application's users, looked up by their primary key."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, class_mapper

from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import Owner, UserT
from msk_auth.users import AsyncUsers, Users

LoadedT = TypeVar("LoadedT")

_Key: TypeAlias = int | str | UUID

_KINDS: Final = (int, str, UUID)


class ModelUsers(Users[Session, str, LoadedT, UserT]):
    """A `find_owner` that reads the user by the primary key: :class:`~msk_auth.Users` with the usual `load_user`.

    ::

        users = ModelUsers(User, owner_of, sessionmaker(engine))
        authenticator = Authenticator(store, find_owner=users)

    The id of an owner is the text of the key, as `str(user.id)` makes it. An id that is no such text, such as the email
    address in a token of another purpose, is no user's.

    Args:
        model: The mapped class. Its primary key is one column of integers, texts or UUIDs.
        owner_of: As for `Users`.
        new_session: As for `Users`.

    Raises:
        ConfigurationError: The class is not mapped, or has another kind of primary key; or as for `Users`.
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


class AsyncModelUsers(AsyncUsers[AsyncSession, str, LoadedT, UserT]):
    """As :class:`ModelUsers`, for :class:`~msk_auth.AsyncAuthenticator`.

    Args:
        model: As for `ModelUsers`. What `owner_of` reads is loaded with it.
        owner_of: As for `AsyncUsers`.
        new_session: As for `AsyncUsers`, such as `async_sessionmaker(engine)`.

    Raises:
        ConfigurationError: As for `ModelUsers`.
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
