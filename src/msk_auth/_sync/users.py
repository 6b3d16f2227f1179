# Generated from src/msk_auth/_async/users.py by tools/generate_sync.py: change that, and run this.
"""Reads the application's users in the request's session, or in a new session."""

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

    If an adapter knows the session of a request, the user is read in it, once: the look-up that decides about the request also
    loads the object that the adapter's `user` gives to routes. Under a lease, which requests share, and outside
    of requests, the owner is read in a new session.

    For a `find_external_owner`, let `load_user` take the :class:`~msk_auth.ExternalIdentity` in place of the id. If it
    creates the user, it must commit the session: a new session is closed without a commit.

    Args:
        load_user: Takes the session and an id, and returns the user or None.
        owner_of: Returns the owner for a user, without the user object. A plain function: load everything that it needs
            with the user.
        new_session: Makes the session of a look-up outside of a request, such as `sessionmaker(engine)`. The session is
            closed afterwards.
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
        """The owner with an id or an external identity, read in the session of a request, which keeps the user."""
        user = self.load_user(request.session, subject)
        if user is None:
            return None
        owner = self.owner_of(user)
        request.users[owner.id] = user
        return owner
