"""Decisions of authentication, from the credential to the principal. `_async.verification` makes the look-ups.

Authentication takes these steps in this order. A failed check ends the request:

1. Read the header (`read_bearer`). A bearer credential decides alone: only without a bearer credential, the application's
   functions look for a login elsewhere in the request.
2. Distinguish a key from a token, and check the format: a malformed credential causes no I/O.
3. A key: find the record, compare the digest, and only then check for revoked and expired.
   A token: its issuer checks signature and claims. Other tokens, and any other text without a key's prefix: call the
   application's functions, in order. Then check that the session is open.
4. Read the owner again. Refuse a disabled owner, and a credential that is older than its owner, since it belongs to a
   predecessor with the same id. Under a lease refuse a mutable owner.
5. The effective permissions are the owner's current permissions, limited to the key's scopes, or to the token's grants.
6. Refuse a key with networks from an address outside of them, even if a lease covers steps 3 to 5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from .errors import (
    ConfigurationError,
    CredentialRefused,
    CredentialsMissing,
    Forbidden,
    RequestMalformed,
)
from .immutability import check_shareable
from .keys import KeyFormat, KeyHasher, KeyValue
from .logins import OpaqueToken, RequestLogins
from .model import (
    Owner,
    Principal,
)
from .networks import contain
from .tokens import ParsedToken, TokenIssuer, check_opaque

MAX_HEADER_LENGTH = 16_384
"""The maximum length of a header value; a longer value is refused before any other work."""

# Rarely used patterns are compiled on first use.
# `auth-scheme` is a token, `credentials` a token68 (RFC 9110, sections 5.6.2 and 11.2).
_SCHEME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# Letters written out: ignoring case takes twice as long, and matches a Kelvin sign as a K.
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([0-9A-Za-z\-._~+/]+=*)")
# The only credentials with commas: those of another scheme with parameters.
_PARAMETER = r"""[!#$%&'*+.^_`|~0-9A-Za-z-]+ *= *(?:"(?:[^"\\]|\\.)*"|[^\s",=][^\s",]*)"""
_WITH_PARAMETERS = rf"\s*{_SCHEME} +{_PARAMETER}(?: *, *{_PARAMETER})*\s*"


def read_bearer(authorization: Sequence[str | bytes]) -> str | None:
    """The bearer token of a request.

    Args:
        authorization: The value of every `Authorization` header of the request, in order. Bytes are read as ASCII.
            Several values count as one value, joined with commas.

    Returns:
        The token, or None if there is no header, or the header has another scheme.

    Raises:
        RequestMalformed: There is more than one credential, or the header is too long, violates the grammar, or contains
            control or non-ASCII characters.
    """
    if not authorization:
        return None
    value = authorization[0] if len(authorization) == 1 else _joined(authorization)
    # Nearly all requests match this pattern, which allows no comma and only printable ASCII.
    if len(value) <= MAX_HEADER_LENGTH:
        match = _BEARER.fullmatch(value if isinstance(value, str) else value.decode("latin-1"))
        if match is not None:
            return match[1]
    if _holds_several(value):
        raise RequestMalformed(
            "The request has several Authorization headers or credentials. Send exactly one."
        )
    if len(value) > MAX_HEADER_LENGTH:
        raise RequestMalformed(
            f"The Authorization header is longer than {MAX_HEADER_LENGTH} characters."
        )
    header = _text(value)
    match = _BEARER.fullmatch(header)
    if match is not None:
        return match[1]
    scheme, _, _ = header.partition(" ")
    if scheme == "":
        return None
    if re.fullmatch(_SCHEME, scheme) is None or scheme.lower() == "bearer":
        raise RequestMalformed
    return None


def bearer_of_key(
    given: Sequence[str | bytes], authorization: Sequence[str | bytes], key_format: KeyFormat
) -> tuple[str | bytes, ...]:
    """The `Authorization` header for a key in another header, if an application accepts one.

    Args:
        given: The value of every such header of the request, in order.
        authorization: The value of every `Authorization` header, returned if there is no key in the other header.
        key_format: The format of the keys. A token in this header is refused.

    Raises:
        RequestMalformed: There are several keys, or an `Authorization` header as well: proxies and services could choose
            different credentials.
        CredentialRefused: The value is not a key.
    """
    if not given:
        return tuple(authorization)
    value = _joined(given)
    if authorization or "," in value:
        raise RequestMalformed(
            "The request has several credentials, in headers of different names or of one. Send exactly one."
        )
    if not key_format.claims(value):
        raise CredentialRefused("key_malformed")
    return (f"Bearer {value}",)


def _joined(authorization: Sequence[str | bytes]) -> str:
    """Several headers joined to one value, as by a WSGI server (RFC 9110, sections 5.3 and 5.5; PEP 3333).

    A WSGI application never sees them separately. All other adapters join them too, so that the same request gets the
    same answer everywhere.
    """
    return ",".join(_decode(value).strip(" \t") for value in authorization)


def _holds_several(header: str | bytes) -> bool:
    """True if a comma separates credentials. This is checked first, even before the length."""
    text = _decode(header)
    if "," not in text:
        return False
    return len(text) > MAX_HEADER_LENGTH or re.fullmatch(_WITH_PARAMETERS, text) is None


def _decode(value: str | bytes) -> str:
    # Latin-1 maps each byte to one character, so that bytes beyond ASCII are found in both types.
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _text(value: str | bytes) -> str:
    value = _decode(value)
    # Not all servers strip the optional white space around a field value (RFC 9110, section 5.5).
    value = value.strip(" \t")
    if not value.isascii() or not value.isprintable():
        raise RequestMalformed(
            "The Authorization header contains characters that are not printable ASCII."
        )
    return value


class Rules(NamedTuple):
    """The application's configuration on which decisions depend.

    Attributes:
        key_format: The prefixes of the keys.
        hasher: Digests and compares keys.
        issuers: The issuers whose JWTs are accepted.
        logins: The application's functions that return a `Login` for their own credentials.
        checks_sessions: True if the application has a `find_session`.
        shares_principals: True if requests may share a principal, as under a lease.
        delegates: True if the application has a `may_act_for`.
    """

    key_format: KeyFormat
    hasher: KeyHasher
    issuers: Sequence[TokenIssuer]
    logins: Sequence[Callable[[str], object]]
    checks_sessions: bool
    shares_principals: bool
    delegates: bool = False

    def check(self) -> Rules:
        """These rules.

        Raises:
            ConfigurationError: They contradict each other.
        """
        chosen: dict[str, list[object]] = {}
        for issuer in self.issuers:
            for name in issuer.names:
                others = chosen.setdefault(name, [])
                if issuer.selects in others or (others and None in (issuer.selects, *others)):
                    raise ConfigurationError(
                        f"Two token profiles have the same issuer, {name!r}, and accept the same tokens. Configure one"
                        " issuer several times only for different audiences, kinds or tenants."
                    )
                others.append(issuer.selects)
        return self


class Authenticated(NamedTuple):
    """The outcome of `authenticate`.

    Attributes:
        principal: The principal of the request.
        valid_until: The end of the credential itself, regardless of caches; None means that it does not end.
        reusable: True if a lease may cover it. A lease may not if only the application knows when the credential ends.
        upgrade: The stored digest and its replacement, if the scheme or the
            pepper changed.
        has_spellings: True if other texts may be the same credential: the application's decoder may ignore characters, as
            many base64 decoders do.
    """

    principal: Principal[Any]
    valid_until: datetime | None
    reusable: bool = True
    upgrade: tuple[str, str] | None = None
    has_spellings: bool = False


Presented: TypeAlias = KeyValue | ParsedToken | OpaqueToken
"""A well-formed bearer credential, which is not trusted yet."""


def read_credential(
    rules: Rules,
    authorization: Sequence[str | bytes],
    elsewhere: RequestLogins | None = None,
) -> Presented | RequestLogins:
    """The credential of a request, by its format alone (steps 1 and 2): garbage costs no look-up and no cryptography.

    Args:
        rules: The application's configuration.
        authorization: The values of every `Authorization` header.
        elsewhere: Functions that may find a login in the rest of the request. Called only if the header has no bearer
            credential, which is accepted or refused alone.

    Raises:
        CredentialsMissing: There is no credential of our kind.
        RequestMalformed: The header is malformed.
        CredentialRefused: The credential is malformed.
    """
    credential = read_bearer(authorization)
    if credential is None:
        if elsewhere is None:
            raise CredentialsMissing
        return elsewhere
    if rules.key_format.claims(credential):
        return rules.key_format.parse(credential)
    if rules.logins and not rules.issuers:
        check_opaque(credential)
        return OpaqueToken(credential)
    try:
        # A JWT has dots and a key never has. Other texts were most likely meant as a key.
        if "." in credential:
            return ParsedToken(credential)
        return rules.key_format.parse(credential)
    except CredentialRefused:
        if not rules.logins:
            raise
        check_opaque(credential, [name for issuer in rules.issuers for name in issuer.names])
        return OpaqueToken(credential)


def at_address(principal: Principal[Any], address: str | None) -> Principal[Any]:
    """The principal of a request from an address (step 6).

    Args:
        principal: The principal of the credential, perhaps verified for another request.
        address: The client's address, as the server sees it; None if unknown.

    Raises:
        Forbidden: The key does not work from this address. Only the holder of the right secret learns this.
    """
    if principal.networks is None:
        return principal
    if not contain(principal.networks, address):
        raise Forbidden("address_not_allowed", key_id=principal.key_id)
    return replace(principal, address=address)


def stands(
    owner: Owner[Any] | None, rules: Rules, made_at: datetime | None
) -> TypeGuard[Owner[Any]]:
    """True if the owner exists, is not disabled, and is not newer than the credential.

    Args:
        owner: The result of the look-up.
        rules: The application's configuration.
        made_at: The time when the credential was made; None to skip this check.

    Raises:
        NotShareable: Requests would share the owner, which is mutable.
    """
    if owner is None or owner.disabled:
        return False
    if made_at is not None and owner.since is not None and made_at < owner.since:
        return False
    if rules.shares_principals:
        check_shareable(owner, "owner")
    return True


def within(owner: Owner[Any], scopes: frozenset[str] | None) -> frozenset[str]:
    """The owner's current permissions, limited to scopes (step 5)."""
    return owner.permissions if scopes is None else owner.permissions & scopes
