"""What is checked of every token of another issuer, whichever it is; `issuers` has what differs.

In this order:

1. `iss` is one of the issuer's, else the token is not its.
2. The header has none of `crit`, `b64`, `zip` and `enc`; its `typ` is one that the issuer uses. Other members are ignored
   (RFC 7515, section 4): no key is ever taken from a token.
3. `kid` names keys of the issuer's set, and one of them made the signature, with an algorithm of that key.
4. The token is of the right kind, for this audience and of this tenant.
5. `exp` and `iat` are there, `nbf` and `auth_time` may be, as numbers (RFC 7519, section 2); `exp - iat` is within the longest
   lifetime.
6. Neither the token nor its login is from the future, and it has not expired, give or take the leeway. A login may be later than
   `iat`: Entra sets that back by five minutes, for machines whose clocks are behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, cast

from msk_auth.core.compact import ParsedToken
from msk_auth.core.errors import ConfigurationError, TokenExpired, TokenInvalid
from msk_auth.core.issuer import VerifiedToken
from msk_auth.core.model import ExternalIdentity
from msk_auth.core.steps import Flow

from .interactive import InteractiveRule
from .keysets import ALGORITHMS, MAX_KID, KeySet, RemoteKeySet

TokenKind: TypeAlias = Literal["access", "id"]
"""An access token (RFC 9068), which is for an API; or an ID token (OpenID Connect Core), which is for a client."""

Claims: TypeAlias = Mapping[str, object]

_REFUSED_HEADERS: Final = ("crit", "b64", "zip", "enc")
# Claims that only ID tokens have (OpenID Connect Core, sections 2 and 3.3.2.11).
_ID_CLAIMS: Final = ("nonce", "at_hash", "c_hash", "s_hash")
_MAX_TEXT: Final = 255
# 9999-12-31, as a datetime can hold it.
_MAX_SECONDS: Final = 253_402_300_799


class ExternalIssuer:
    """An issuer of tokens that is not this application. Use one of the presets, or `OIDC`.

    Args:
        names: Each `iss` of its tokens; the first has the discovery document.
        audience: The `aud` that means this application; of several one has to be there.
        keys: Where its keys come from; None fetches them.
        types: Each `typ` that the header may have, in lower case; None among them means that it may be absent.
        interactive: Which tokens stand for a person's login, given the claims. Only True counts, and a rule that raises
            means a machine.
        max_lifetime: The longest time from `iat` to `exp`.
        leeway: How far the clocks of issuer and verifier may be apart.

    Raises:
        ConfigurationError: A name is empty, a duration is out of range, or `interactive` is not a plain function.
    """

    def __init__(
        self,
        *names: str,
        audience: str | Collection[str],
        keys: KeySet | None,
        types: Collection[str | None],
        interactive: Callable[[Claims], bool],
        max_lifetime: timedelta,
        leeway: timedelta,
    ) -> None:
        audiences = frozenset({audience} if isinstance(audience, str) else audience)
        if not all(names) or not audiences or not all(audiences):
            raise ConfigurationError(
                "An issuer needs its own name and the audience that means this application."
            )
        if max_lifetime < timedelta(seconds=1):
            raise ConfigurationError("max_lifetime must be at least one second.")
        if not timedelta(0) <= leeway <= timedelta(minutes=5):
            raise ConfigurationError("leeway must be between 0 and 5 minutes.")
        self.audiences = audiences
        self.max_lifetime = max_lifetime
        self.leeway = leeway
        self.keys: KeySet = RemoteKeySet(names[0]) if keys is None else keys
        self._names = names
        self._types = frozenset(types)
        self._interactive = InteractiveRule(names[0], interactive)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._names[0]!r}>"

    @property
    def names(self) -> Collection[str]:
        """Each `iss` that its tokens have."""
        return self._names

    def open(self) -> None:
        """Begin to fetch its keys ahead. Opening an authenticator calls it."""
        self.keys.open()

    def close(self) -> None:
        """End what :meth:`open` began. Closing an authenticator calls it."""
        self.keys.close()

    def authenticate(self, token: ParsedToken, now: datetime) -> Flow[VerifiedToken | None]:
        """Verify a token, for the flows; None for a token of another issuer.

        Raises:
            TokenExpired: Everything is right but the time has run out.
            TokenInvalid: Anything else.
            SigningKeysUnavailable: The keys are not there.
        """
        claims = token.claims
        if claims.get("iss") not in self._names:
            return None
        header = token.header
        algorithm, kid = self._check_header(header)
        keys = yield from self.keys.find(kid)
        if not any(key.verify(algorithm, token.message, token.signature) for key in keys):
            raise TokenInvalid
        self.check_audience(claims)
        self.check_kind(header, claims)
        issued_at, expires_at = _moment(claims, "iat"), _moment(claims, "exp")
        if not issued_at < expires_at or expires_at - issued_at > self.max_lifetime:
            raise TokenInvalid
        authenticated_at = self.authenticated_at(claims, issued_at)
        not_before = _moment(claims, "nbf") if "nbf" in claims else issued_at
        latest = max(issued_at, not_before, authenticated_at or issued_at)
        if latest > now + self.leeway:
            raise TokenInvalid
        issuer, subject = cast("str", claims["iss"]), self.subject(claims)
        if now - self.leeway >= expires_at:
            raise TokenExpired
        frozen = cast("Claims", _frozen(claims))
        return VerifiedToken(
            subject=ExternalIdentity(issuer, subject, frozen),
            expires_at=expires_at,
            authenticated_at=authenticated_at,
            # Its sessions are not of this application.
            session_id=None,
            has_session=False,
            interactive=self._interactive.applies_to(frozen),
        )

    def _check_header(self, header: Mapping[str, object]) -> tuple[str, str]:
        """The algorithm and the key id."""
        if any(member in header for member in _REFUSED_HEADERS):
            raise TokenInvalid
        typ = header.get("typ")
        if typ is None and "typ" in header:
            raise TokenInvalid
        if typ is not None and not isinstance(typ, str):
            raise TokenInvalid
        if (typ if typ is None else typ.lower()) not in self._types:
            raise TokenInvalid
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise TokenInvalid
        if not isinstance(kid, str) or not 0 < len(kid) <= MAX_KID:
            raise TokenInvalid
        return algorithm, kid

    def check_audience(self, claims: Claims) -> None:
        """Refuse a token for another audience.

        Raises:
            TokenInvalid: It is.
        """
        if self.audiences.isdisjoint(texts(claims.get("aud"))):
            raise TokenInvalid

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """Refuse a token of another kind or tenant.

        Raises:
            TokenInvalid: It is.
        """

    def subject(self, claims: Claims) -> str:
        """Who it stands for: what the issuer never gives to another person.

        Raises:
            TokenInvalid: The claim is missing or wrong.
        """
        return text_claim(claims, "sub")

    def authenticated_at(self, claims: Claims, issued_at: datetime) -> datetime | None:
        """When the person logged in; None if the token does not state it."""
        return _moment(claims, "auth_time") if "auth_time" in claims else None


def require_id_token(claims: Claims, audiences: Collection[str]) -> None:
    """Refuse what has the claims of an access token, and an ID token that another client got (OpenID Connect Core, 3.1.3.7).

    Raises:
        TokenInvalid: It is one.
    """
    if any(member in claims for member in ("scp", "cid", "client_id")):
        raise TokenInvalid
    party = claims.get("azp")
    if len(texts(claims.get("aud"))) > 1 and (not isinstance(party, str) or party not in audiences):
        raise TokenInvalid


def refuse_id_token(claims: Claims) -> None:
    """Refuse what is marked as an ID token.

    Raises:
        TokenInvalid: It is one.
    """
    if any(member in claims for member in _ID_CLAIMS):
        raise TokenInvalid


def require_texts(claims: Claims, *names: str) -> None:
    """Refuse a token without one of these claims.

    Raises:
        TokenInvalid: One is missing, or is not text.
    """
    for name in names:
        text_claim(claims, name)


def texts(value: object) -> frozenset[str]:
    """The members of a claim that is one text or a list of them (RFC 7519, section 4.1.3).

    Raises:
        TokenInvalid: It is something else.
    """
    if isinstance(value, str):
        return frozenset({value})
    if isinstance(value, list):
        members = cast("list[object]", value)
        if all(isinstance(member, str) for member in members):
            return frozenset(cast("list[str]", members))
    raise TokenInvalid


def _moment(claims: Claims, name: str) -> datetime:
    value = claims.get(name)
    # bool is an int in Python, and not a NumericDate. NaN and infinity are in no range.
    if type(value) not in {int, float} or not 0 <= cast("float", value) <= _MAX_SECONDS:
        raise TokenInvalid
    return datetime.fromtimestamp(cast("float", value), UTC)


def text_claim(claims: Claims, name: str) -> str:
    """A claim that is printable text of at most 255 characters.

    Raises:
        TokenInvalid: It is something else, or missing.
    """
    value = claims.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT or not value.isprintable():
        raise TokenInvalid
    return value


def _frozen(value: Any) -> object:
    """A JSON value that cannot be changed: requests share it under a lease."""
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return MappingProxyType({name: _frozen(member) for name, member in members.items()})
    if isinstance(value, list):
        return tuple(_frozen(member) for member in cast("list[object]", value))
    return value
