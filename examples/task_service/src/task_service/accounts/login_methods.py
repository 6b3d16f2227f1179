"""The ways to log in, by the present settings: logins in other ways are refused."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, false, or_, select

from task_service.db import schema

_USERS = schema.users.c
_IDENTITIES = schema.identities.c
_SESSIONS = schema.sessions.c


@dataclass(frozen=True, slots=True)
class LoginMethods:
    """The ways to log in.

    Attributes:
        passwords: Whether users have passwords here.
        issuer: The identity provider's issuer; None without a provider.
    """

    passwords: bool = True
    issuer: str | None = None

    def admit_user(self) -> ColumnElement[bool]:
        """A condition for rows of the table of users: the user can log in, unless they are disabled."""
        return self._either(_USERS.password_hash.is_not(None), _USERS.id)

    def admit_session(self) -> ColumnElement[bool]:
        """A condition for rows of the table of sessions: an open session began in a way that is still possible.

        An open session from the identity provider has its ID token.
        """
        local = _SESSIONS.id_token.is_(None)
        return self._either(local, _SESSIONS.user_id, ~local)

    def _either(
        self,
        local: ColumnElement[bool],
        user_id: ColumnElement[str],
        *external: ColumnElement[bool],
    ) -> ColumnElement[bool]:
        ways: list[ColumnElement[bool]] = []
        if self.passwords:
            ways.append(local)
        if self.issuer is not None:
            # Only identities of the configured issuer: an earlier issuer admits no user.
            known = select(_IDENTITIES.user_id).where(
                _IDENTITIES.user_id == user_id, _IDENTITIES.issuer == self.issuer
            )
            ways.append(and_(known.exists(), *external))
        return or_(false(), *ways)
