# Generated from src/msk_auth/_async/users.py by tools/generate_sync.py: change that, and run this.
"""The application's users, read in a session: the request's own where there is one, otherwise a new one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from msk_auth.core.model import ExternalIdentity, Owner, UserT
from msk_auth.users import BaseUsers, RequestSession

SessionT = TypeVar("SessionT")
SubjectT = TypeVar("SubjectT", bound=str | ExternalIdentity)
LoadedT = TypeVar("LoadedT")


class Users(BaseUsers[LoadedT, UserT], Generic[SessionT, SubjectT, LoadedT, UserT]):
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
        owner_of: What decides about a user. Leave the user out of it. It is a plain function: what it needs is loaded with
            the user.
        new_session: Makes the session of a look-up outside of a request, such as `sessionmaker(engine)`. It is closed
            afterwards.
    """

    def __init__(
        self,
        load_user: Callable[[SessionT, SubjectT], LoadedT | None],
        owner_of: Callable[[LoadedT], Owner[UserT]],
        new_session: Callable[[], AbstractContextManager[SessionT]],
    ) -> None:
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
        if user is None:
            return None
        owner = self.owner_of(user)
        request.users[owner.id] = user
        return owner
