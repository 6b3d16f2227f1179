"""The format of a JWT, and the protocol of issuers.

The format is three segments of canonical base64url (RFC 7515, section 7.1; RFC 8725, section 3.7). Parsed values are not trusted
yet. A token has one spelling, JSON objects with a duplicate member are refused at any depth, and deeply nested JSON
is refused before any other code walks through it.

`msk_auth.tokens` has the issuers. An issuer returns None for another issuer's token ("not mine"), and raises for its own
token if it refuses it ("mine, but bad"). Issuers are tried in order. A token that one configuration refuses may belong to another:
an application may configure an issuer several times, for different kinds and audiences.
"""

from __future__ import annotations

import binascii
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from .errors import CredentialRefused
from .model import ExternalIdentity
from .strict_json import read_object

if TYPE_CHECKING:
    from concurrent.futures import Future


MAX_TOKEN_LENGTH: Final = 16_384
"""The maximum length of a token, in characters: an ID token of Entra with 200 groups, the documented maximum, has 12,000."""

MAX_DEPTH: Final = 32
"""The maximum depth of nested objects and arrays in a segment. Providers use about five."""

_MAX_KEPT_HEADER: Final = 256
# The two alphabets of RFC 4648, sections 4 and 5.
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_", b"+/")


class ParsedToken:
    """A well-formed token, which is not trusted yet.

    Raises:
        CredentialRefused: The token is malformed.
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
    # All tokens of a key have the same header. A longer header is not ours, and not cached.
    return _decode_once(segment) if len(segment) <= _MAX_KEPT_HEADER else _decode(segment)


@lru_cache(maxsize=64)
def _decode_once(segment: str) -> Mapping[str, object]:
    return MappingProxyType(_decode(segment))


def _decode(segment: str) -> dict[str, object]:
    raw = _b64decode(segment)
    _refuse_deep(raw)
    try:
        return read_object(raw)
    except ValueError:
        raise CredentialRefused("token_invalid") from None


def check_opaque(credential: str, issuers: Collection[str] = ()) -> None:
    """Refuse a credential that must not reach the application's functions, decoded leniently.

    Most decoders ignore padding and characters outside of the alphabet. For a function that decodes JWTs, another spelling of an
    issuer's token would be the token itself, and deeply nested JSON a RecursionError.

    Args:
        credential: A bearer credential that is not a `ParsedToken`.
        issuers: The `iss` values of the application's issuers.

    Raises:
        CredentialRefused: Its header or its claims are deeply nested, or its claims name one of the issuers.
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
    # Fewer brackets cannot be that deep, so almost every token is parsed only once.
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deep(raw):
        raise CredentialRefused("token_invalid")


def _is_deep(raw: bytes) -> bool:
    try:
        value: object = json.loads(raw)
    except RecursionError:  # pragma: no cover - Python 3.14 reads all that a token has room for
        return True
    except ValueError:
        return False
    return _is_deeper(value, MAX_DEPTH)


def _is_deeper(value: object, depth: int) -> bool:
    """True if a value has more than this number of objects and arrays within each other."""
    if not isinstance(value, dict | list):
        return False
    members = cast("Iterable[object]", value.values() if isinstance(value, dict) else value)
    return depth == 0 or any(_is_deeper(member, depth - 1) for member in members)


def b64encode(raw: bytes) -> str:
    """Base64url without padding (RFC 7515, section 2)."""
    return binascii.b2a_base64(raw, newline=False).translate(_TO_URL, b"=").decode()


def _b64decode_leniently(segment: str) -> bytes:
    """Decode like most decoders: ignore characters outside of the alphabet, and bits after the last byte."""
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
    # A byte string has several spellings in lenient base64; a revoked token must have no second
    # spelling.
    if b64encode(raw) != segment:
        raise CredentialRefused("token_invalid")
    return raw


PENDING_SECONDS: Final = 4.5
"""How long a request waits for an issuer's keys: G5 allows five seconds."""


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """The contents of a verified token, or of the application's own login.

    Attributes:
        subject: The id of the owner; for another issuer's token the identity at that issuer.
        expires_at: The time from which it is refused; None if only the application knows.
        authenticated_at: The time when the person logged in; None if it is unknown.
        session_id: Its session in this application, if any.
        has_session: True if it must belong to a session, if the application has sessions.
        interactive: True for a person's login.
        scopes: Its grants; None if only the owner's permissions decide.
    """

    subject: str | ExternalIdentity
    expires_at: datetime | None
    authenticated_at: datetime | None
    session_id: str | None
    has_session: bool
    interactive: bool
    scopes: frozenset[str] | None = None


class TokenIssuer(ABC):
    """Verifies the tokens of an issuer.

    Attributes:
        names: Each `iss` of its tokens; identities have the first.
        selects: Describes the accepted tokens. Issuers that differ in this value may share a name; with None they may not.
    """

    names: tuple[str, ...]
    selects: object = None

    def pending(self, token: ParsedToken) -> Future[None] | None:
        """The fetch of keys for which a token's verification must wait; None if there is none.

        Raises:
            CredentialRefused: The token is invalid with any key.
        """
        return None

    @abstractmethod
    def authenticate(self, token: ParsedToken, now: datetime) -> VerifiedToken | None:
        """Verify a token; None for another issuer's token.

        Raises:
            CredentialRefused: `token_expired` if the token is valid except that it has expired, otherwise `token_invalid`.
            SigningKeysUnavailable: The keys could not be fetched.
        """
