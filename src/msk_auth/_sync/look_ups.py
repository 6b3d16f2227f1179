# Generated from src/msk_auth/_async/look_ups.py by tools/generate_sync.py: change that, and run this.
"""The store and the look-ups of the application, as a verification reads them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Generic, TypeVar

from msk_auth.core.model import ApiKey, ExternalIdentity, Owner, Session, UserT
from msk_auth.core.store import WrongRecord
from msk_auth.users import RequestSession, in_session_of

from . import primitives
from .store import KeyStore

R = TypeVar("R", ApiKey, Owner[Any], Session)


class LookUps(Generic[UserT]):
    """Looks up keys, owners and sessions. Each result has the id that was asked for: no caller has to check it.

    Args:
        store: Has the keys.
        find_owner: The application's function, as the others are.
        find_external_owner: None if there is none.
        find_session: None if there is none.
    """

    def __init__(
        self,
        store: KeyStore,
        find_owner: Callable[[str], Owner[UserT] | None],
        find_external_owner: Callable[[ExternalIdentity], Owner[UserT] | None] | None,
        find_session: Callable[[str], Session | None] | None,
    ) -> None:
        self._keys = primitives.KeyReader(store)
        self._find_owner = find_owner
        self._find_external_owner = find_external_owner
        self._find_session = find_session

    def in_session(self, request: RequestSession) -> LookUps[UserT]:
        """These look-ups for one request: they read the owner in its session."""
        there = copy(self)
        there._find_owner = in_session_of(request, self._find_owner)  # noqa: SLF001 - it is a copy of this object
        there._find_external_owner = in_session_of(request, self._find_external_owner)  # noqa: SLF001
        return there

    def find_key(self, key_id: str, /) -> ApiKey | None:
        """The record of a key."""
        return _requested("a key", self._keys.find(key_id), key_id)

    def find_owner(self, owner_id: str, /) -> Owner[UserT] | None:
        """The application's user with an id."""
        return _requested("an owner", self._find_owner(owner_id), owner_id)

    def find_external_owner(self, identity: ExternalIdentity, /) -> Owner[UserT] | None:
        """The application's user for the subject of an issuer."""
        find = self._find_external_owner
        return None if find is None else find(identity)

    def find_session(self, session_id: str, /) -> Session | None:
        """The login session with an id."""
        find = self._find_session
        return None if find is None else _requested("a session", find(session_id), session_id)


def _requested(what: str, answer: R | None, requested_id: str) -> R | None:
    """The answer, if it has the requested id."""
    if answer is not None and answer.id != requested_id:
        raise WrongRecord(what)
    return answer
