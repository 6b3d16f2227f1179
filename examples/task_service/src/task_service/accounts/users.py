"""Users: who they are, what they may do, and the rule that somebody must be left to administer the service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Row, and_, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import (
    Clock,
    FieldError,
    InputInvalid,
    Owner,
    PageCursor,
    PermissionDenied,
    Principal,
)
from task_service.db import schema
from task_service.db.engine import Database
from task_service.errors import LastAdministrator, UsernameTaken, UserNotFound
from task_service.ids import is_id, new_id
from task_service.tasks.cancellation import cancel_runs_of

from .audit import Audit
from .credentials import begin_credential_write
from .narrowing import AccessNarrowed, nothing_is_reused
from .password_links import void_first_links, void_links
from .passwords import Passwords, check_password
from .roles import ADMIN, MANAGE_USERS, ROLE_PERMISSIONS, check_roles
from .sessions import end_open_sessions
from .user_query import EVERYBODY, UserQuery, found_by
from .usernames import MAX_USERNAME, is_username, normalised_username

MAX_PAGE: Final = 200

_USERS = schema.users.c


@dataclass(frozen=True, slots=True)
class User:
    """A person, or a service that is treated as one.

    Attributes:
        username: As it is compared: NFKC and lower case.
        roles: Sorted.
        disabled: True refuses every login and every key of this user.
        last_login_at: None means never.
        has_password: False until the first one was set through a link.
    """

    id: str
    username: str
    roles: tuple[str, ...]
    disabled: bool
    created_at: datetime
    last_login_at: datetime | None
    has_password: bool

    @property
    def permissions(self) -> frozenset[str]:
        """Everything the roles allow. A role that this version does not know allows nothing."""
        return frozenset[str]().union(
            *(ROLE_PERMISSIONS.get(role, frozenset[str]()) for role in self.roles)
        )

    def to_owner(self) -> Owner[User]:
        """The user as the library sees them."""
        return Owner(self.id, self.permissions, self, self.disabled)


@dataclass(frozen=True, slots=True)
class UserPage:
    """One page of users; `next_cursor` is None on the last one."""

    items: tuple[User, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, repr=False)
class StoredPassword:
    """What the login needs to know of a user, and nothing else may."""

    user: User
    hash: str | None


class Users:
    """The users and what administrators do with them.

    Args:
        db: Where they are.
        clock: Where the time comes from.
        audit: Records every change, in the change's own transaction.
        passwords: Hashes the password that the command line gives a new user.
        access_narrowed: See :mod:`task_service.accounts.narrowing`.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        *,
        audit: Audit,
        passwords: Passwords,
        access_narrowed: AccessNarrowed = nothing_is_reused,
    ) -> None:
        self._db = db
        self._clock = clock
        self._audit = audit
        self._passwords = passwords
        self._access_narrowed = access_narrowed

    async def find_owner(self, owner_id: str) -> Owner[User] | None:
        """For the library's authenticator: the user with this id, read afresh; None if there is none."""
        if not is_id(owner_id, "usr"):
            return None
        async with self._db.read() as connection:
            row = (
                await connection.execute(select(schema.users).where(_USERS.id == owner_id))
            ).one_or_none()
        return None if row is None else user_of(row).to_owner()

    async def get(self, user_id: str) -> User:
        """The user with this id.

        Raises:
            UserNotFound: There is none.
        """
        owner = await self.find_owner(user_id)
        if owner is None:
            raise UserNotFound
        return owner.user

    async def get_by_name(self, username: str) -> User:
        """The user with this name, however it is written.

        Raises:
            UserNotFound: There is none.
        """
        stored = await self.find_password(username)
        if stored is None:
            raise UserNotFound(f"There is no user named {username!r}.")
        return stored.user

    async def find_password(
        self, username: str, *, connection: AsyncConnection | None = None
    ) -> StoredPassword | None:
        """The user with this name and the password's hash; None if there is none.

        Args:
            username: As it was typed.
            connection: To read in a transaction that is open already.
        """
        name = normalised_username(username)
        if not is_username(name):
            return None
        async with AsyncExitStack() as stack:
            if connection is None:
                connection = await stack.enter_async_context(self._db.read())
            row = (
                await connection.execute(select(schema.users).where(_USERS.username == name))
            ).one_or_none()
        return None if row is None else StoredPassword(user_of(row), row.password_hash)

    async def list(
        self, query: UserQuery = EVERYBODY, *, cursor: str | None = None, limit: int = 50
    ) -> UserPage:
        """A page of users, newest first.

        Args:
            query: Which ones.
            cursor: The previous page's `next_cursor`.
            limit: How many at most, 1 to 200.

        Raises:
            InputInvalid: The query, the cursor or the limit is not acceptable.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise InputInvalid.of("limit", f"Ask for 1 to {MAX_PAGE} users.")
        statement = (
            found_by(query).order_by(_USERS.created_at.desc(), _USERS.id.desc()).limit(limit + 1)
        )
        if cursor is not None:
            at, user_id = PageCursor.decode(cursor)
            statement = statement.where(
                or_(
                    _USERS.created_at < at,
                    and_(_USERS.created_at == at, _USERS.id < user_id),
                )
            )
        async with self._db.read() as connection:
            rows = (await connection.execute(statement)).all()
        items = tuple(user_of(row) for row in rows[:limit])
        more = len(rows) > limit
        return UserPage(
            items, PageCursor.encode(items[-1].created_at, items[-1].id) if more else None
        )

    async def create(
        self,
        username: str,
        roles: Iterable[str],
        *,
        by: Principal[Any] | None = None,
        password: str | None = None,
    ) -> User:
        """Add a user.

        Args:
            username: 1 to 64 visible characters without spaces; kept in NFKC and lower case.
            roles: At least one of `ROLE_PERMISSIONS`.
            by: Who does it; None means the service itself or its command line.
            password: Only the command line gives one; everybody else chooses their own through a link.

        Raises:
            InputInvalid: The name, a role or the password is not acceptable.
            UsernameTaken: There is a user of that name, perhaps written otherwise.
            Problem: As :func:`begin_administration`.
        """
        name, checked_roles = check_user(username, roles)
        password_hash = None
        if password is not None:
            password_hash = await self._passwords.hash(check_password(password, name))
        async with name_taken(), self._db.write() as connection:
            return await self.add(
                connection, name, checked_roles, by=by, password_hash=password_hash
            )

    async def add(
        self,
        connection: AsyncConnection,
        name: str,
        roles: tuple[str, ...],
        *,
        by: Principal[Any] | None = None,
        password_hash: str | None = None,
    ) -> User:
        """Add a user in a transaction that is open already.

        Args:
            connection: In a write transaction.
            name: As :func:`check_user` gives it.
            roles: As :func:`check_user` gives them.
            by: Who does it; None means the service itself or its command line.
            password_hash: As :meth:`Passwords.hash` made it.

        Raises:
            sqlalchemy.exc.IntegrityError: There is a user of that name: see :func:`name_taken`.
            Problem: As :func:`begin_administration`.
        """
        now = self._clock.now()
        await begin_administration(connection, by, now)
        if _administers(roles, disabled=False, has_password=password_hash is not None):
            await void_first_links(connection, await administrators_of(connection), now)
        user = User(
            id=new_id("usr"),
            username=name,
            roles=roles,
            disabled=False,
            created_at=now,
            last_login_at=None,
            has_password=password_hash is not None,
        )
        await connection.execute(
            insert(schema.users).values(
                id=user.id,
                username=name,
                roles=list(roles),
                password_hash=password_hash,
                created_at=user.created_at,
            )
        )
        await self._audit.record(
            "user.created",
            principal=by,
            target=user.id,
            details={"username": name, "roles": roles},
            connection=connection,
        )
        return user

    async def change(
        self,
        user_id: str,
        *,
        by: Principal[Any] | None = None,
        roles: Iterable[str] | None = None,
        disabled: bool | None = None,
    ) -> User:
        """Give a user other roles, disable or enable them, or both at once.

        A disabled user's login sessions, password links and runs end for good: queued runs at once, running ones within
        about a second. Their keys are refused while they are disabled and work again afterwards. When this returns, no
        process acts on what was before.

        Args:
            user_id: Whom.
            by: Who does it; None means the service itself or its command line.
            roles: The new roles; None leaves them.
            disabled: None leaves it.

        Raises:
            InputInvalid: A role is not acceptable.
            UserNotFound: There is no such user.
            LastAdministrator: Nobody who can log in would be left to administer the service.
            Problem: As :func:`begin_administration`.
        """
        new_roles = None if roles is None else check_roles(roles)
        now = self._clock.now()
        async with self._db.write() as connection:
            await begin_administration(connection, by, now)
            before = await read_user(connection, user_id)
            after_roles = before.roles if new_roles is None else new_roles
            after_disabled = before.disabled if disabled is None else disabled
            if (
                _administers(before.roles, before.disabled, before.has_password)
                and not _administers(after_roles, after_disabled, before.has_password)
                and not await _is_administered_without(connection, user_id)
            ):
                raise LastAdministrator
            if after_roles != before.roles:
                await connection.execute(
                    update(schema.users).where(_USERS.id == user_id).values(roles=list(after_roles))
                )
                await self._audit.record(
                    "user.roles_changed",
                    principal=by,
                    target=user_id,
                    details={"old": before.roles, "new": after_roles},
                    connection=connection,
                )
            if after_disabled != before.disabled:
                await connection.execute(
                    update(schema.users)
                    .where(_USERS.id == user_id)
                    .values(disabled_at=now if after_disabled else None)
                )
                if after_disabled:
                    await end_open_sessions(connection, user_id, now)
                    await void_links(connection, user_id, now)
                    await cancel_runs_of(connection, user_id, now)
                await self._audit.record(
                    "user.disabled" if after_disabled else "user.enabled",
                    principal=by,
                    target=user_id,
                    connection=connection,
                )
            user = await read_user(connection, user_id)
        await self._access_narrowed()
        return user


@asynccontextmanager
async def name_taken() -> AsyncGenerator[None]:
    """Around a transaction that adds a user.

    Raises:
        UsernameTaken: The database refused it.
    """
    try:
        yield
    except IntegrityError as error:
        # The id has 95 random bits: it is the name.
        raise UsernameTaken from error


def check_user(username: str, roles: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """A new user's name and roles as they are stored.

    Raises:
        InputInvalid: With all the fields that are wrong.
    """
    errors: list[FieldError] = []
    name = normalised_username(username)
    if not is_username(name) or len(username) > MAX_USERNAME:
        errors.append(
            FieldError(
                "username", f"A name has 1 to {MAX_USERNAME} visible characters and no spaces."
            )
        )
    checked: tuple[str, ...] = ()
    try:
        checked = check_roles(roles)
    except InputInvalid as error:
        errors += error.errors
    if errors:
        raise InputInvalid(errors)
    return name, checked


def _administers(roles: Iterable[str], disabled: bool, has_password: bool) -> bool:
    """Whether such a user could log in and administer the service."""
    return ADMIN in roles and not disabled and has_password


async def _is_administered_without(connection: AsyncConnection, user_id: str) -> bool:
    administrators = await administrators_of(connection)
    return any(user.has_password for user in administrators if user.id != user_id)


async def administrators_of(connection: AsyncConnection) -> list[User]:
    """The administrators who are not disabled, oldest first, whether they can log in or not."""
    rows = await connection.execute(
        select(schema.users)
        .where(_USERS.disabled_at.is_(None))
        .order_by(_USERS.created_at, _USERS.id)
    )
    return [user for user in map(user_of, rows) if ADMIN in user.roles]


async def read_user(connection: AsyncConnection, user_id: str) -> User:
    """The user with this id, as a transaction sees them.

    Raises:
        UserNotFound: There is none.
    """
    if is_id(user_id, "usr"):
        found = select(schema.users).where(_USERS.id == user_id)
        row = (await connection.execute(found)).one_or_none()
        if row is not None:
            return user_of(row)
    raise UserNotFound


async def begin_administration(
    connection: AsyncConnection, by: Principal[Any] | None, now: datetime
) -> None:
    """Begin to write for an administrator, as :func:`begin_credential_write` does, who must be one still.

    Raises:
        TokenRevoked: The login of `by` has ended since its request was authenticated.
        PermissionDenied: `by` no longer administers users.
    """
    await begin_credential_write(connection, by, now)
    if by is not None:
        actor = await read_user(connection, by.owner.id)
        if MANAGE_USERS not in actor.permissions:
            raise PermissionDenied([MANAGE_USERS])


def user_of(row: Row[Any]) -> User:
    """The user in a row of the table of users."""
    return User(
        id=row.id,
        username=row.username,
        roles=tuple(row.roles),
        disabled=row.disabled_at is not None,
        created_at=row.created_at,
        last_login_at=row.last_login_at,
        has_password=row.password_hash is not None,
    )
