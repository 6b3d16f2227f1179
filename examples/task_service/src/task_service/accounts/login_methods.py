"""How people may log in, by the settings in force: what was possible under earlier settings opens nothing."""

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
        issuer: The identity provider's; None if there is none.
    """

    passwords: bool = True
    issuer: str | None = None

    def admit_user(self) -> ColumnElement[bool]:
        """A condition for rows of the table of users: the user can log in, unless they are disabled."""
        return self._either(_USERS.password_hash.is_not(None), _USERS.id)

    def admit_session(self) -> ColumnElement[bool]:
        """A condition for rows of the table of sessions: an open session began in a way that is still possible.

        An open session that began at the identity provider has its ID token.
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
            # The configured issuer's own: one that was configured before admits no user.
            known = select(_IDENTITIES.user_id).where(
                _IDENTITIES.user_id == user_id, _IDENTITIES.issuer == self.issuer
            )
            ways.append(and_(known.exists(), *external))
        return or_(false(), *ways)
