"""A JWT: its form, and what authentication knows of those who issue and verify one.

The form is three segments of canonical base64url (RFC 7515, section 7.1; RFC 8725, section 3.7). Nothing is believed of what is
read here. One token has one spelling, JSON objects with a duplicate member are refused wherever they are, and JSON that is
nested deep is refused before any other code walks through it.

`msk_auth.tokens` has the issuers. An issuer returns None for a token of another issuer ("not mine"), and raises for one of
its own that it refuses ("mine, but bad"). One issuer is tried after the other. A token that one refuses may be another's: an
application configures one issuer several times, for different kinds and audiences.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeGuard, cast

from .errors import CredentialRefused
from .model import ExternalIdentity

if TYPE_CHECKING:
    from concurrent.futures import Future


MAX_TOKEN_LENGTH: Final = 16_384
"""The longest token that is read, in characters: an ID token of Entra with 200 groups, its documented number, has 12,000."""

MAX_DEPTH: Final = 32
"""How many objects and arrays of a segment may be within each other. Providers use about five."""

_MAX_KEPT_HEADER: Final = 256
# The two alphabets of RFC 4648, sections 4 and 5.
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_", b"+/")


class ParsedToken:
    """A token whose form is right and of which nothing is believed yet.

    Raises:
        CredentialRefused: The form is wrong.
    """

    __slots__ = ("claims", "header", "message", "signature")

    def __init__(self, token: str) -> None:
        if len(token) > MAX_TOKEN_LENGTH:
            raise CredentialRefused("token_invalid")
        segments = token.split(".")
        if len(segments) != 3:
            raise CredentialRefused("token_invalid")
        header, claims, signature = segments
        self.header: Mapping[str, object] = _decode_header(header)
        self.claims: dict[str, object] = _decode(claims)
        self.signature: bytes = _b64decode(signature)
        self.message: bytes = f"{header}.{claims}".encode("ascii")

    def reveal(self) -> str:
        """The token. It has one spelling: base64url is decoded strictly."""
        return f"{self.message.decode()}.{b64encode(self.signature)}"


def encode_segment(members: Mapping[str, object]) -> str:
    """A segment of a token: the members of a JSON object, in base64url."""
    return b64encode(json.dumps(members, separators=(",", ":")).encode())


def _decode_header(segment: str) -> Mapping[str, object]:
    # All tokens of one key begin alike. A longer header is none of ours, and not kept.
    return _decode_once(segment) if len(segment) <= _MAX_KEPT_HEADER else _decode(segment)


@lru_cache(maxsize=64)
def _decode_once(segment: str) -> Mapping[str, object]:
    return MappingProxyType(_decode(segment))


def _decode(segment: str) -> dict[str, object]:
    raw = _b64decode(segment)
    _refuse_deep(raw)
    try:
        value: object = _JSON.decode(raw.decode("utf-8"))
    except ValueError:
        raise CredentialRefused("token_invalid") from None
    if not isinstance(value, dict):
        raise CredentialRefused("token_invalid")
    return cast("dict[str, object]", value)


def check_opaque(credential: str, issuers: Collection[str] = ()) -> None:
    """Refuse a credential that no function of the application may get, as a lenient decoder reads it.

    Most decoders ignore padding and characters that are not of the alphabet. To a function that decodes JWTs, a token of an
    issuer in another spelling would be the token itself, and JSON that is nested deep a RecursionError.

    Args:
        credential: A bearer credential that is no `ParsedToken`.
        issuers: Each `iss` of the application's issuers.

    Raises:
        CredentialRefused: Its header or its claims are nested deep, or its claims name one of the issuers.
    """
    segments = [_b64decode_leniently(segment) for segment in credential.split(".")[:2]]
    for segment in segments:
        _refuse_deep(segment)
    if issuers and _issuer_in(segments[-1]) in issuers:
        raise CredentialRefused("token_invalid")


def _issuer_in(claims: bytes) -> object:
    try:
        value: object = json.loads(claims)
    except ValueError:
        return None
    return cast("dict[str, object]", value).get("iss") if isinstance(value, dict) else None


def _refuse_deep(raw: bytes) -> None:
    # Fewer brackets cannot be that deep: almost every token is parsed once only.
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deep(raw):
        raise CredentialRefused("token_invalid")


def _is_deep(raw: bytes) -> bool:
    try:
        values: list[object] = [json.loads(raw)]
    except RecursionError:  # pragma: no cover - Python 3.14 reads all that a token has room for
        return True
    except ValueError:
        return False
    for _ in range(MAX_DEPTH):
        values = [
            member
            for value in filter(_is_container, values)
            for member in (value.values() if isinstance(value, dict) else value)
        ]
    return any(map(_is_container, values))


def _is_container(value: object) -> TypeGuard[dict[str, object] | list[object]]:
    return isinstance(value, dict | list)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise CredentialRefused("token_invalid")
    return members


def _refuse_constant(_name: str) -> NoReturn:
    raise CredentialRefused("token_invalid")  # NaN and Infinity are not JSON


# `json.loads` makes a decoder for each call that has hooks.
_JSON: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)


def b64encode(raw: bytes) -> str:
    """Base64url without padding (RFC 7515, section 2)."""
    return binascii.b2a_base64(raw, newline=False).translate(_TO_URL, b"=").decode()


def _b64decode_leniently(segment: str) -> bytes:
    """What most decoders read: characters that are not of the alphabet, and bits after the last byte, are ignored."""
    try:
        return binascii.a2b_base64(segment.encode().translate(_FROM_URL) + b"==")
    except ValueError:
        return b""


def _b64decode(segment: str) -> bytes:
    try:
        padded = (segment + "=" * (-len(segment) % 4)).encode("ascii").translate(_FROM_URL)
        raw = binascii.a2b_base64(padded, strict_mode=True)
    except ValueError:
        raise CredentialRefused("token_invalid") from None
    # One byte string has several spellings in lenient base64; a token that was revoked must have no
    # second one.
    if b64encode(raw) != segment:
        raise CredentialRefused("token_invalid")
    return raw


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
