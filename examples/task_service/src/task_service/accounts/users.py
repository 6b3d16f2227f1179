"""Users: their names, roles and permissions. At least one user who can log in always administers the service."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Row,
    Select,
    String,
    cast,
    func,
    insert,
    select,
    type_coerce,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from msk_auth import Owner, Principal
from msk_auth.errors import PermissionDenied
from task_service.db import schema
from task_service.db.paging import FIRST_PAGE, Order, Page, PageRequest, Paging
from task_service.errors import LastAdministrator, UsernameTaken, UserNotFound
from task_service.ids import is_id, new_id
from task_service.tasks.runs import cancel_runs_of
from task_service.validation import Search

from .changes import Accounts, Change
from .credentials import begin_credential_write, void_links
from .login_methods import LoginMethods
from .names import check_name, is_username, normalised_username
from .passwords import Passwords, check_password
from .roles import ADMIN, MANAGE_USERS, ROLE_PERMISSIONS, Role
from .sessions import end_sessions

SERVICE_ACCOUNT: Final = "svc"
"""The prefix of a service account's id. The prefix of users is `usr`."""

_USERS = schema.users.c


@dataclass(frozen=True, slots=True)
class User:
    """A user of the service, or a service account.

    Attributes:
        username: The name in NFKC and lower case, as for comparisons.
        roles: The sorted roles.
        disabled: True refuses every login and every key of this user.
        last_login_at: The last login, or None.
        has_password: False until the user has set a first password through a link.
        external_login: True if the user logs in at the identity provider.
        service_account: True for a service account, which owns keys, tasks and runs, and never logs in.
    """

    id: str
    username: str
    roles: tuple[str, ...]
    disabled: bool
    created_at: datetime
    last_login_at: datetime | None
    has_password: bool
    external_login: bool = False
    service_account: bool = False

    @property
    def can_log_in(self) -> bool:
        """True if the user has a way to log in, even if the settings do not admit it or the user is disabled."""
        return self.has_password or self.external_login

    @property
    def permissions(self) -> frozenset[str]:
        """The permissions of all roles. A role that this version does not know has none."""
        return frozenset[str]().union(
            *(ROLE_PERMISSIONS.get(role, frozenset[str]()) for role in self.roles)
        )

    def to_owner(self) -> Owner[User]:
        """The user as the library's owner of keys."""
        return Owner(self.id, self.permissions, self, self.disabled)


class UserSort(StrEnum):
    """The order of users: newest first, latest login first, or by name."""

    CREATED = "created"
    LOGIN = "login"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class AccountQuery:
    """The users or service accounts to list; None means any.

    Attributes:
        search: A part of the name, or a whole id. A part of an id finds no user: ids are random, and most of them
            contain any given letter.
        disabled: True for disabled users, False for enabled ones.
    """

    search: Search = None
    disabled: bool | None = None

    def apply(self, statement: Select[Any]) -> Select[Any]:
        """The statement, which selects users, for the users of this query."""
        if self.search is not None:
            name = _USERS.username.contains(normalised_username(self.search), autoescape=True)
            statement = statement.where(name | (_USERS.id == self.search.strip()))
        if self.disabled is not None:
            is_disabled = _USERS.disabled_at.is_not(None)
            statement = statement.where(is_disabled if self.disabled else ~is_disabled)
        return statement


@dataclass(frozen=True, slots=True)
class UserQuery(AccountQuery):
    """The users to list; None means any.

    Attributes:
        role: Users with this role.
        sort: The order.
    """

    role: Role | None = None
    sort: UserSort = UserSort.CREATED


ALL_USERS: Final = UserQuery()


@dataclass(frozen=True, slots=True, repr=False)
class StoredPassword:
    """A user with the password hash, which only the login reads."""

    user: User
    hash: str | None


class Users:
    """The users, and administrators' changes of them.

    Args:
        accounts: The database.
        passwords: Hashes the password that the command line gives a new user.
        methods: The ways to log in, for the rule of the last administrator.
    """

    def __init__(self, accounts: Accounts, *, passwords: Passwords, methods: LoginMethods) -> None:
        self._accounts = accounts
        self._passwords = passwords
        self._methods = methods
        self._find_user = accounts.db.prepare_by_id(
            select(schema.users).where(_USERS.deleted_at.is_(None))
        )

    async def find_owner(self, owner_id: str) -> Owner[User] | None:
        """Read the user or service account with this id for the library's authenticator; None if there is none."""
        if not _is_owner(owner_id):
            return None
        row = await self._find_user(owner_id)
        return None if row is None else user_of(row).to_owner()

    async def get(self, user_id: str) -> User:
        """The user with this id.

        Raises:
            UserNotFound: There is none.
        """
        async with self._accounts.db.read() as connection:
            return await read_user(connection, user_id)

    async def get_by_name(self, username: str) -> User:
        """The user or service account with this name, in any spelling.

        Raises:
            UserNotFound: There is none.
        """
        stored = await self.find_password(username)
        if stored is None:
            raise UserNotFound(f"There is no user named {username!r}.")
        return stored.user

    async def by_id(self, user_ids: Iterable[str]) -> dict[str, User]:
        """These users and service accounts by their ids; unknown ids are left out.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        found = select(schema.users).where(_USERS.id.in_(set(user_ids)))
        async with self._accounts.db.read() as connection:
            return {row.id: user_of(row) for row in await connection.execute(found)}

    async def find_password(self, username: str) -> StoredPassword | None:
        """The user or service account with this name, and the password's hash; None if there is none.

        A service account has no password, so a login with its name is refused like that of a user without a password.

        Args:
            username: The typed name.
        """
        name = normalised_username(username)
        if not is_username(name):
            return None
        found = select(schema.users).where(_USERS.username == name)
        async with self._accounts.db.read() as connection:
            row = (await connection.execute(found)).one_or_none()
        return None if row is None else StoredPassword(user_of(row), row.password_hash)

    async def list(
        self, query: UserQuery = ALL_USERS, page: PageRequest = FIRST_PAGE
    ) -> Page[User]:
        """A page of users.

        Args:
            query: The filter and order.
            page: The page, of at most 200 users.

        Raises:
            InputInvalid: Field `cursor`.
        """
        wanted = query.apply(select(schema.users).where(_USERS.service_account.is_(False)))
        if query.role is not None:
            # Roles are a JSON array of plain words, so each role is between quotes.
            role = cast(_USERS.roles, String).contains(f'"{query.role}"', autoescape=True)
            wanted = wanted.where(role)
        paging = Paging(_ORDERS[query.sort], query, page)
        async with self._accounts.db.read() as connection:
            return await paging.read(connection, wanted, user_of)

    async def create(
        self,
        username: str,
        roles: Iterable[Role],
        *,
        by: Principal[Any] | None = None,
        password: str | None = None,
    ) -> User:
        """Add a user.

        Args:
            username: 1 to 64 visible characters without spaces; kept in NFKC and lower case.
            roles: At least one.
            by: The administrator; None means the service itself or its command line.
            password: A password from the command line; other users choose their own through a link.

        Raises:
            InputInvalid: The name or the password is not acceptable.
            UsernameTaken: A user has this name, perhaps in another spelling.
            Problem: As for :func:`begin_administration`.
        """
        name = check_name(username)
        password_hash = None
        if password is not None:
            password_hash = await self._passwords.hash(check_password(password, name))
        async with name_taken(), self._accounts.change(by) as change:
            return await self.add(change, name, roles, password_hash=password_hash)

    async def add(
        self,
        change: Change,
        name: str,
        roles: Iterable[Role],
        *,
        password_hash: str | None = None,
        external_login: bool = False,
    ) -> User:
        """Add a user in an open transaction.

        Args:
            change: The change of an administrator, of the service itself or of its command line.
            name: The result of :func:`check_name`.
            roles: At least one.
            password_hash: The result of :meth:`Passwords.hash`.
            external_login: True if the user logs in at the identity provider.

        Raises:
            sqlalchemy.exc.IntegrityError: A user has this name: see :func:`name_taken`.
            Problem: As for :func:`begin_administration`.
        """
        await begin_administration(change)
        user_id, held = new_id("usr"), sorted(set(roles))
        if ADMIN in held and (password_hash is not None or external_login):
            await void_first_links(change)
        await change.connection.execute(
            insert(schema.users).values(
                id=user_id,
                username=name,
                roles=held,
                password_hash=password_hash,
                external_login=external_login,
                created_at=change.now,
            )
        )
        await change.record("user.created", user_id, username=name, roles=held)
        return await read_user(change.connection, user_id)

    async def change(
        self,
        user_id: str,
        *,
        by: Principal[Any] | None = None,
        roles: Iterable[Role] | None = None,
        disabled: bool | None = None,
        beside: Callable[[Change], Awaitable[None]] | None = None,
        beside_ids: Sequence[str] = (),
    ) -> User:
        """Change a user's roles, disable or enable the user, or both.

        A disabled user's login sessions, password links and runs end permanently: queued runs immediately, running runs
        within about a second. The user's keys are refused until the user is enabled again. When this returns, every process
        has the change.

        Args:
            user_id: The user.
            by: The administrator; None means the service itself or its command line.
            roles: The new roles; None changes nothing.
            disabled: None changes nothing.
            beside: Makes further changes in the same transaction.
            beside_ids: The users and service accounts that `beside` locks.

        Raises:
            UserNotFound: There is no such user.
            LastAdministrator: No administrator could log in with the present settings.
            Problem: As for :func:`begin_administration`.
        """
        async with self._accounts.narrow(by) as change:
            connection = change.connection
            await begin_administration(change, user_id, *beside_ids)
            before = await read_user(connection, user_id)
            after_roles = before.roles if roles is None else tuple(sorted(set(roles)))
            after_disabled = before.disabled if disabled is None else disabled
            if ADMIN not in after_roles or after_disabled:
                able = await administrators_of(connection, self._methods.admit_user())
                if [user.id for user in able] == [user_id]:
                    raise LastAdministrator
            if ADMIN in after_roles and not after_disabled and before.can_log_in:
                await void_first_links(change)
            if after_roles != before.roles:
                await write_user(change, user_id, roles=list(after_roles))
                await change.record(
                    "user.roles_changed", user_id, old=before.roles, new=after_roles
                )
            if after_disabled != before.disabled:
                await set_disabled(change, user_id, after_disabled)
            if beside is not None:
                await beside(change)
            return await read_user(connection, user_id)


_ORDERS: Final = {
    UserSort.CREATED: Order.by_time(_USERS.created_at, _USERS.id),
    UserSort.LOGIN: Order(
        func.coalesce(type_coerce(_USERS.last_login_at, BigInteger), 0), _USERS.id, descending=True
    ),
    UserSort.NAME: Order(_USERS.username, _USERS.id),
}


@asynccontextmanager
async def name_taken() -> AsyncGenerator[None]:
    """Translates the database's refusal in a transaction that adds a user.

    Raises:
        UsernameTaken: There is a user or a service account of that name.
    """
    try:
        yield
    except IntegrityError as error:
        # The id has 95 random bits, so the duplicate is the name.
        raise UsernameTaken from error


async def administrators_of(
    connection: AsyncConnection, *conditions: ColumnElement[bool]
) -> list[User]:
    """The enabled administrators who fulfil these conditions, oldest first, whether or not they can log in yet."""
    rows = await connection.execute(
        select(schema.users)
        .where(_USERS.disabled_at.is_(None), _USERS.service_account.is_(False), *conditions)
        .order_by(_USERS.created_at, _USERS.id)
    )
    return [user for user in map(user_of, rows) if ADMIN in user.roles]


async def read_user(connection: AsyncConnection, user_id: str) -> User:
    """The user with this id in a transaction. Service accounts are not found.

    Raises:
        UserNotFound: There is none.
    """
    if is_id(user_id, "usr"):
        found = select(schema.users).where(_USERS.id == user_id, _USERS.service_account.is_(False))
        row = (await connection.execute(found)).one_or_none()
        if row is not None:
            return user_of(row)
    raise UserNotFound


async def write_user(change: Change, user_id: str, **values: Any) -> None:
    """Write columns of a user or service account."""
    await change.connection.execute(
        update(schema.users).where(_USERS.id == user_id).values(**values)
    )


async def set_disabled(
    change: Change, user_id: str, disabled: bool, *, kind: str = "user", **details: Any
) -> None:
    """Disable or enable a user or service account.

    Args:
        change: The change, which has locked the users.
        user_id: The user or service account.
        disabled: True also ends sessions, links and runs, permanently.
        kind: The first word of the audit entry's action.
        details: The details of the audit entry.
    """
    await write_user(change, user_id, disabled_at=change.now if disabled else None)
    if disabled:
        await end_sessions(change, user_id)
        await void_links(change, user_id)
        await cancel_runs_of(change.connection, user_id, change.now)
    await change.record(f"{kind}.{'disabled' if disabled else 'enabled'}", user_id, **details)


async def void_first_links(change: Change) -> None:
    """Void every link for the first administrator, because there is about to be another administrator.

    The output of every started process shows such a link, with which a later reader of that output must not become an
    administrator. Later, such links do not exist, and this changes nothing.

    Args:
        change: The change, which has locked the users.
    """
    administrators = await administrators_of(change.connection)
    if not any(user.can_log_in for user in administrators):
        for user in administrators:
            await void_links(change, user.id)


async def begin_administration(change: Change, *user_ids: str) -> None:
    """Begin a write like :func:`begin_credential_write`, and check that its principal still administers users.

    Args:
        change: The change.
        user_ids: As for :func:`begin_credential_write`.

    Raises:
        CredentialRefused: The login has ended since its request was authenticated.
        PermissionDenied: The user no longer has the permission.
    """
    # PostgreSQL fails on a NUL character, which another text of a client may have.
    await begin_credential_write(change, *filter(_is_owner, user_ids))
    if change.by is not None:
        actor = await read_user(change.connection, change.by.owner.id)
        if MANAGE_USERS not in actor.permissions:
            raise PermissionDenied([MANAGE_USERS])


def _is_owner(owner_id: str) -> bool:
    return is_id(owner_id, "usr") or is_id(owner_id, SERVICE_ACCOUNT)


def user_of(row: Row[Any]) -> User:
    """The user or service account in a row of the table of users."""
    return User(
        id=row.id,
        username=row.username,
        roles=tuple(row.roles),
        disabled=row.disabled_at is not None,
        created_at=row.created_at,
        last_login_at=row.last_login_at,
        has_password=row.password_hash is not None,
        external_login=row.external_login,
        service_account=row.service_account,
    )
