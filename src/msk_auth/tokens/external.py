"""What is checked of every token of another issuer, whichever it is; `issuers` has what differs.

In this order:

1. `iss` is one of the issuer's, else the token is not its.
2. The header has none of `crit`, `b64`, `zip` and `enc`; its `typ` is one that the issuer uses. Other members are ignored
   (RFC 7515, section 4): no key is ever taken from a token.
3. `kid` names keys of the issuer's set, and one of them made the signature, with an algorithm of that key.
4. The token is for this audience.
5. It is of the right kind and tenant. `events` is in logout tokens and other security events (RFC 8417), never in a login. A
   token with `cnf` is bound to a key (RFC 7800), and a client that sends it as a bearer has not shown that key.
6. `exp` and `iat` are there, `nbf` and `auth_time` may be, as numbers (RFC 7519, section 2); `exp - iat` is within the longest
   lifetime.
7. Neither the token nor its login is from the future, and it has not expired, give or take the leeway. A login may be later than
   `iat`: Entra sets that back by five minutes, for machines whose clocks are behind.
8. What it was granted can be read.

Whether it stands for a person's login is decided last, and in doubt it does not. With `act` (RFC 8693, section 4.1) another
party acts for the person, so it does not either, whatever the application's rule returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict, cast

from msk_auth.core.compact import ParsedToken
from msk_auth.core.errors import ConfigurationError, TokenExpired, TokenInvalid
from msk_auth.core.issuer import VerifiedToken
from msk_auth.core.model import ExternalIdentity

from .grants import GrantRule, Grants
from .interactive import InteractiveRule
from .keysets import ALGORITHMS, MAX_KID, KeySet, RemoteKeySet

if TYPE_CHECKING:
    from concurrent.futures import Future

TokenKind: TypeAlias = Literal["access", "id"]
"""An access token (RFC 9068), which is for an API; or an ID token (OpenID Connect Core), which is for a client."""

Claims: TypeAlias = Mapping[str, object]
Rule: TypeAlias = Callable[[Claims], bool]

_REFUSED_HEADERS: Final = ("crit", "b64", "zip", "enc")
_MAX_TEXT: Final = 255
# 9999-12-31, as a datetime can hold it.
_MAX_SECONDS: Final = 253_402_300_799


def never(_claims: Claims) -> bool:
    """No token."""
    return False


def always(_claims: Claims) -> bool:
    """Every token."""
    return True


def text_claim(claims: Claims, name: str) -> str:
    """A claim that is printable text of at most 255 characters.

    Raises:
        TokenInvalid: It is something else, or missing.
    """
    value = claims.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_TEXT or not value.isprintable():
        raise TokenInvalid
    return value


def moment(claims: Claims, name: str) -> datetime:
    """A claim that is a `NumericDate` (RFC 7519, section 2).

    Raises:
        TokenInvalid: It is something else, or missing.
    """
    value = claims.get(name)
    # bool is an int in Python, and not a NumericDate. NaN and infinity are in no range.
    if type(value) not in {int, float} or not 0 <= cast("float", value) <= _MAX_SECONDS:
        raise TokenInvalid
    return datetime.fromtimestamp(cast("float", value), UTC)


def _subject(claims: Claims) -> str:
    return text_claim(claims, "sub")


def _auth_time(claims: Claims, _issued_at: datetime) -> datetime | None:
    return moment(claims, "auth_time") if "auth_time" in claims else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One kind of token of one provider. `issuers` has a row for each.

    Attributes:
        token: What it is. A session's and a job's token are access tokens of a form that is the provider's own.
        evidence: What `is_person` rests on, for readers.
        is_person: Which tokens stand for a person's login, unless the application has a rule. None: none ever does, and the
            application can have no rule.
        types: Each `typ` that the header may have, in lower case; None among them means that it may be absent.
        audience: The claim that names this application. Only `aud` may be an array.
        requires: Claims that have to be there, as text.
        fixed: Claims that have exactly this text.
        is_kind: What else the claims have to show.
        subject: Who it stands for: what the issuer never gives to another person.
        authenticated_at: When the person logged in, given the claims and `iat`; None if the token does not state it.
        keys_path: Where the keys are, below the issuer; empty means by discovery.
        max_lifetime: The longest time from `iat` to `exp`, unless the application sets another.
    """

    token: Literal["access", "id", "session", "job", "logout"]
    evidence: str = "never"
    is_person: Rule | None = None
    types: frozenset[str | None] = frozenset({None, "jwt"})
    audience: str = "aud"
    requires: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict[str, str])
    is_kind: Rule = always
    subject: Callable[[Claims], str] = _subject
    authenticated_at: Callable[[Claims, datetime], datetime | None] = _auth_time
    keys_path: str = ""
    max_lifetime: timedelta = timedelta(hours=24)


class Options(TypedDict, total=False):
    """The arguments that every preset has. :class:`ExternalIssuer` explains them."""

    interactive: Rule | None
    keys: KeySet | None
    required: Mapping[str, str]
    max_lifetime: timedelta
    leeway: timedelta
    allow_bound: bool


class ExternalIssuer:
    """An issuer of tokens that is not this application. Use one of the presets, or `OIDC`.

    Args:
        preset: What its tokens look like.
        names: Each `iss` of its tokens. All are one issuer, which identities name by the first; that one has the keys.
        audience: What the claim of the audience has for this application; of several one has to be there.
        grants: Which claim limits the permissions: see :data:`Grants`. There is no default, since without a limit a token has all
            permissions of its owner.
        interactive: Which tokens stand for a person's login, given the claims. Without it, those that the preset names. Only
            True counts; a rule that raises means a machine, and a token with `act` is a machine's whatever the rule returns.
        keys: A :class:`PinnedKeySet`, or a :class:`RemoteKeySet` with settings of yours. Without it the issuer's keys are fetched;
            all presets of one issuer share them.
        required: Claims that must have exactly this text, such as an organisation's.
        max_lifetime: The longest time from `iat` to `exp`. A token cannot be revoked here before its end.
        leeway: How far the clocks of the issuer and this machine may be apart.
        allow_bound: Whether tokens that are bound to a key (`cnf`: DPoP, mutual TLS) are accepted as plain bearers. Pass True only
            where a proxy has checked the proof of the key before.

    Raises:
        ConfigurationError: A name is empty, a duration is out of range, or a rule is not a plain function.
    """

    def __init__(
        self,
        preset: Preset,
        *names: str,
        audience: str | Collection[str],
        grants: Grants,
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        required: Mapping[str, str] | None = None,
        max_lifetime: timedelta | None = None,
        leeway: timedelta = timedelta(seconds=30),
        allow_bound: bool = False,
    ) -> None:
        audiences = frozenset({audience} if isinstance(audience, str) else audience)
        if not names or not all(names) or not audiences or not all(audiences):
            raise ConfigurationError(
                "An issuer needs its own name and the audience that means this application."
            )
        lifetime = preset.max_lifetime if max_lifetime is None else max_lifetime
        if lifetime < timedelta(seconds=1):
            raise ConfigurationError("max_lifetime must be at least one second.")
        if not timedelta(0) <= leeway <= timedelta(minutes=5):
            raise ConfigurationError("leeway must be between 0 and 5 minutes.")
        if preset.is_person is None and interactive is not None:
            raise ConfigurationError(
                f"{type(self).__name__} takes no rule `interactive`: its tokens never stand for a person's login."
            )
        self.preset: Preset = preset
        self.names: Collection[str] = names
        self.audiences = audiences
        self.max_lifetime = lifetime
        self.leeway = leeway
        self.shares_keys: bool = keys is None
        keys_uri = f"{names[0]}{preset.keys_path}" if preset.keys_path else None
        self.keys: KeySet = RemoteKeySet(names[0], jwks_uri=keys_uri) if keys is None else keys
        self._fixed = {**(required or {}), **preset.fixed}
        self._allow_bound = allow_bound is True
        self.selects: tuple[object, ...] = (
            preset,
            audiences,
            self._fixed,
            lifetime,
            self._allow_bound,
        )
        self._grants = GrantRule(names[0], grants)
        self._interactive = InteractiveRule(names[0], interactive or preset.is_person or never)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {next(iter(self.names))!r}>"

    def open(self) -> None:
        """Begin to fetch its keys ahead. Opening an authenticator calls it."""
        self.keys.open()

    def close(self) -> None:
        """End what :meth:`open` began. Closing an authenticator calls it."""
        self.keys.close()

    def pending(self, token: ParsedToken) -> Future[None] | None:
        """What has to end before a token can be verified: a fetch of the keys. None if nothing has to.

        Raises:
            TokenInvalid: Its header is wrong, so no keys are needed.
        """
        if token.claims.get("iss") not in self.names:
            return None
        self._check_header(token.header)
        return self.keys.pending()

    def authenticate(self, token: ParsedToken, now: datetime) -> VerifiedToken | None:
        """Verify a token; None for a token of another issuer.

        Raises:
            TokenExpired: Everything is right but the time has run out.
            TokenInvalid: Anything else.
            SigningKeysUnavailable: The keys are not there.
        """
        claims = token.claims
        if claims.get("iss") not in self.names:
            return None
        header = token.header
        algorithm, kid = self._check_header(header)
        keys = self.keys.find(kid)
        if not any(key.verify(algorithm, token.message, token.signature) for key in keys):
            raise TokenInvalid
        self._check_audience(claims)
        self._check_kind(header, claims)
        issued_at, expires_at = moment(claims, "iat"), moment(claims, "exp")
        if not issued_at < expires_at or expires_at - issued_at > self.max_lifetime:
            raise TokenInvalid
        authenticated_at = self.preset.authenticated_at(claims, issued_at)
        not_before = moment(claims, "nbf") if "nbf" in claims else issued_at
        latest = max(issued_at, not_before, authenticated_at or issued_at)
        if latest > now + self.leeway:
            raise TokenInvalid
        subject = self.preset.subject(claims)
        if now - self.leeway >= expires_at:
            raise TokenExpired
        frozen = cast("Claims", _frozen(claims))
        return VerifiedToken(
            # One issuer, however its name is spelled in this token.
            subject=ExternalIdentity(next(iter(self.names)), subject, frozen),
            expires_at=expires_at,
            authenticated_at=authenticated_at,
            # Its sessions are not of this application.
            session_id=None,
            has_session=False,
            interactive="act" not in claims and self._interactive.applies_to(frozen),
            scopes=self._grants.scopes(frozen),
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
        if (typ if typ is None else typ.lower()) not in self.preset.types:
            raise TokenInvalid
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise TokenInvalid
        if not isinstance(kid, str) or not 0 < len(kid) <= MAX_KID:
            raise TokenInvalid
        return algorithm, kid

    def _check_audience(self, claims: Claims) -> None:
        value = claims.get(self.preset.audience)
        if self.preset.audience != "aud" and not isinstance(value, str):
            raise TokenInvalid
        if self.audiences.isdisjoint(texts(value)):
            raise TokenInvalid

    def _check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        preset = self.preset
        if ("events" in claims) != (preset.token == "logout"):
            raise TokenInvalid
        if "cnf" in claims and not self._allow_bound:
            raise TokenInvalid
        for name in preset.requires:
            text_claim(claims, name)
        if any(claims.get(name) != text for name, text in self._fixed.items()):
            raise TokenInvalid
        if preset.token == "id":
            # What another client got (OpenID Connect Core, section 3.1.3.7).
            party = claims.get("azp")
            is_ours = isinstance(party, str) and party in self.audiences
            if len(texts(claims.get("aud", []))) > 1 and not is_ours:
                raise TokenInvalid
        if not preset.is_kind(claims):
            raise TokenInvalid
        self.check_kind(header, claims)

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """Refuse a token of another kind or tenant, beyond what the preset states.

        Raises:
            TokenInvalid: It is one.
        """


def share_keys(issuers: Iterable[ExternalIssuer]) -> None:
    """Let those of one issuer that fetch its keys use one key set."""
    shared: dict[str, KeySet] = {}
    for issuer in issuers:
        if issuer.shares_keys:
            issuer.keys = shared.setdefault(next(iter(issuer.names)), issuer.keys)


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


def _frozen(value: Any) -> object:
    """A JSON value that cannot be changed: requests share it under a lease."""
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return MappingProxyType({name: _frozen(member) for name, member in members.items()})
    if isinstance(value, list):
        return tuple(_frozen(member) for member in cast("list[object]", value))
    return value
