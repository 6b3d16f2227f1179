"""What authentication knows of an issuer of tokens: it verifies one, and returns who it stands for.

`msk_auth.tokens` has the issuers. An issuer returns None for a token of another issuer ("not mine"), and raises for one of
its own that it refuses ("mine, but bad"). One issuer is tried after the other. A token that one refuses may be another's: an
application configures one issuer several times, for different kinds and audiences.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

from .compact import ParsedToken
from .model import ExternalIdentity

if TYPE_CHECKING:
    from concurrent.futures import Future

PENDING_SECONDS: Final = 4.5
"""How long a request waits for the keys of an issuer: G5 allows it five seconds."""


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """What a verified token, or a login of the application, stands for.

    Attributes:
        subject: The id of the owner; for a token of another issuer than this application who it stands for there.
        expires_at: The first moment at which it is refused; None if only the application knows.
        authenticated_at: When the person logged in; None if that is not known.
        session_id: A session of this application that it belongs to, if any.
        has_session: Whether it has to belong to one, where the application has sessions.
        interactive: Whether it stands for a person's login.
        scopes: What it was granted; None if the permissions of its owner decide alone.
    """

    subject: str | ExternalIdentity
    expires_at: datetime | None
    authenticated_at: datetime | None
    session_id: str | None
    has_session: bool
    interactive: bool
    scopes: frozenset[str] | None = None


class TokenIssuer(Protocol):
    """Verifies the tokens of one issuer."""

    @property
    def names(self) -> Collection[str]:
        """Each `iss` that its tokens have."""
        ...

    @property
    def selects(self) -> object:
        """What it accepts of those tokens. Several issuers may share a name if they differ in it; None shares no name."""
        ...

    def pending(self, token: ParsedToken) -> Future[None] | None:
        """What has to end before a token can be verified, such as a fetch of the issuer's keys; None if nothing has to.

        Raises:
            CredentialRefused: No key can make the token right.
        """
        ...

    def authenticate(self, token: ParsedToken, now: datetime) -> VerifiedToken | None:
        """What the token stands for; None if another issuer is to verify it.

        Raises:
            CredentialRefused: `token_expired` if everything is right but the time has run out, `token_invalid` for anything
                else.
            SigningKeysUnavailable: The keys are not there.
        """
        ...
