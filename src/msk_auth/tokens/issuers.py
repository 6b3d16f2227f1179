"""Identity providers whose tokens are accepted.

    authenticator = Authenticator(
        store,
        find_owner=find_owner,
        issuers=[
            ExternalIssuer(
                Provider.AUTH0,
                "tenant.eu.auth0.com",
                audience="https://api.example.com",
                grants="permissions",
            )
        ],
        find_external_owner=find_external_owner,
    )

`providers` has a row for each provider. What is checked of every token, in this order:

1. `iss` is one of the issuer's, else the token is not its.
2. The header has none of `crit`, `b64`, `zip` and `enc`; its `typ` is one that the issuer uses. Other members are ignored
   (RFC 7515, section 4): no key is ever taken from a token.
3. `kid` names keys of the issuer's set, and one of them made the signature, with an algorithm of that key.
4. The token is for this audience.
5. It is of the right kind and tenant, by the provider's row. `events` is in logout tokens and other security events (RFC 8417),
   never in a login. A token with `cnf` is bound to a key (RFC 7800), and a client that sends it as a bearer has not shown that
   key.
6. `exp` and `iat` are there, `nbf` and `auth_time` may be, as numbers (RFC 7519, section 2); `exp - iat` is within the longest
   lifetime.
7. Neither the token nor its login is from the future, and it has not expired, give or take the leeway. A login may be later than
   `iat`: Entra sets that back by five minutes, for machines whose clocks are behind.
8. What it was granted can be read.

Whether it stands for a person's login is decided last, and in doubt it does not: see `claims`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, cast

from msk_auth.core.errors import ConfigurationError, CredentialRefused
from msk_auth.core.model import ExternalIdentity
from msk_auth.core.tokens import ParsedToken, VerifiedToken

from .claims import Claims, ClaimsRules, Grants, Rule, audience, frozen, moment, text
from .keysets import ALGORITHMS, MAX_KID, KeySet, PinnedKeySet, RemoteKeySet
from .providers import SHARED, Provider, TokenRules, never

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = [
    "ExternalIssuer",
    "KeySet",
    "PinnedKeySet",
    "Provider",
    "RemoteKeySet",
    "TokenRules",
]

_REFUSED_HEADERS: Final = ("crit", "b64", "zip", "enc")


class ExternalIssuer:
    """An issuer of tokens that is not this application.

    One issuer may be configured several times, for different audiences, kinds and tenants. The first that accepts a token counts.

    Args:
        provider: Who issues the tokens.
        tenant: Your part of the provider, such as a domain or a project; for `Provider.OIDC` the `iss`, exactly as the discovery
            document has it. The provider's section of the reference has its form.
        audience: What the claim of the audience has for this application: the API's identifier, for ID tokens the client's id,
            or what the provider's section has. Of several one has to be there.
        grants: What limits the permissions of a token to those of its owner that it was granted. There is no default, since
            without a limit a token has all of them.

            - A claim's name, such as `"scope"` or `"permissions"`: a string of names with spaces between them (RFC 6749,
              section 3.3), or an array of strings. A claim that is missing or empty grants nothing. Anything else in its place
              is refused.
            - A function of the claims, for nested ones and for names to be mapped. It returns the names, and `()` to grant
              nothing. A token is refused if the function raises or returns None, a single string, an object, or anything but
              strings.
            - None: the owner's permissions decide alone.
        token: Which kind is accepted, where the provider has access tokens (RFC 9068, for an API) and ID tokens (OpenID Connect
            Core, for a client); None for the provider's first. Or rules of your own, for tokens that differ from those of the
            provider's row.
        issuer: The `iss`, for an instance or a domain of your own; None for the provider's.
        interactive: Which tokens stand for a person's login, given the claims. Without it, those that the provider's row names.
            Only True counts; a rule that raises means a machine. A token with `act` is a machine's, and no rule is called for it.
        keys: A :class:`PinnedKeySet`, or a :class:`RemoteKeySet` with settings of yours. Without it the issuer's keys are fetched;
            all configurations of one issuer share them.
        required: Claims that must have exactly this text, such as an organisation's.
        max_lifetime: The longest time from `iat` to `exp`. A token cannot be revoked here before its end.
        leeway: How far the clocks of the issuer and this machine may be apart.
        allow_bound: Whether tokens that are bound to a key (`cnf`: DPoP, mutual TLS) are accepted as plain bearers. Pass True only
            where a proxy has checked the proof of the key before.

    Raises:
        ConfigurationError: The tenant has another form, the provider has no tokens of this kind or does not take an argument, a name
            is empty, a duration is out of range, or a rule is not a plain function. `required` contradicts a claim that the
            provider's row fixes. Or the issuer serves every customer of a provider, and `required` names none of them.
    """

    def __init__(
        self,
        provider: Provider,
        tenant: str = "",
        *,
        audience: str | Collection[str],
        grants: Grants,
        token: Literal["access", "id"] | TokenRules | None = None,
        issuer: str | None = None,
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        required: Mapping[str, str] | None = None,
        max_lifetime: timedelta | None = None,
        leeway: timedelta = timedelta(seconds=30),
        allow_bound: bool = False,
    ) -> None:
        names = _names(provider, tenant, issuer)
        rules = _rules(provider, token)
        if SHARED.get(names[0], provider) is not provider and not required:
            raise ConfigurationError(
                f"Every customer of {names[0]} gets tokens for any audience. Use {SHARED[names[0]]}, or name yours:"
                " required={…}."
            )
        audiences = frozenset({audience} if isinstance(audience, str) else audience)
        if not all(names) or not audiences or not all(audiences):
            raise ConfigurationError(
                "An issuer needs its own name and the audience that means this application."
            )
        lifetime = rules.max_lifetime if max_lifetime is None else max_lifetime
        if lifetime < timedelta(seconds=1):
            raise ConfigurationError("max_lifetime must be at least one second.")
        if not timedelta(0) <= leeway <= timedelta(minutes=5):
            raise ConfigurationError("leeway must be between 0 and 5 minutes.")
        if rules.is_person is None and interactive is not None:
            raise ConfigurationError(
                f"{provider} takes no rule `interactive`: its tokens never stand for a person's login."
            )
        self.provider: Provider = provider
        self.tenant: str = tenant
        self.rules: TokenRules = rules
        self.names: tuple[str, ...] = names
        self.audiences = audiences
        self.max_lifetime = lifetime
        self.leeway = leeway
        self.shares_keys: bool = keys is None
        keys_path = provider.value.keys_path
        keys_uri = f"{names[0]}{keys_path}" if keys_path else None
        self.keys: KeySet = RemoteKeySet(names[0], jwks_uri=keys_uri) if keys is None else keys
        self._fixed = _fixed(provider, rules, required)
        self._allow_bound = allow_bound is True
        self.selects: tuple[object, ...] = (
            tenant,
            rules,
            audiences,
            self._fixed,
            lifetime,
            self._allow_bound,
        )
        self._claims_rules = ClaimsRules(names[0], interactive or rules.is_person or never, grants)

    def __repr__(self) -> str:
        return f"<ExternalIssuer {self.provider} {self.names[0]!r}>"

    def open(self) -> None:
        """Begin to fetch its keys ahead. Opening an authenticator calls it."""
        self.keys.open()

    def close(self) -> None:
        """End what :meth:`open` began. Closing an authenticator calls it."""
        self.keys.close()

    def pending(self, token: ParsedToken) -> Future[None] | None:
        """What has to end before a token can be verified: a fetch of the keys. None if nothing has to.

        Raises:
            CredentialRefused: Its header is wrong, so no keys are needed.
        """
        if token.claims.get("iss") not in self.names:
            return None
        self._check_header(token.header)
        return self.keys.pending()

    def authenticate(self, token: ParsedToken, now: datetime) -> VerifiedToken | None:
        """Verify a token; None for a token of another issuer.

        Raises:
            CredentialRefused: `token_expired` if everything is right but the time has run out, `token_invalid` for anything
                else.
            SigningKeysUnavailable: The keys are not there.
        """
        claims = token.claims
        if claims.get("iss") not in self.names:
            return None
        header = token.header
        algorithm, kid = self._check_header(header)
        keys = self.keys.find(kid)
        if not any(key.verify(algorithm, token.message, token.signature) for key in keys):
            raise CredentialRefused("token_invalid")
        self._check_audience(claims)
        self._check_kind(header, claims)
        issued_at, expires_at = moment(claims, "iat"), moment(claims, "exp")
        if not issued_at < expires_at or expires_at - issued_at > self.max_lifetime:
            raise CredentialRefused("token_invalid")
        authenticated_at = self.rules.authenticated_at(claims, issued_at)
        not_before = moment(claims, "nbf") if "nbf" in claims else issued_at
        latest = max(issued_at, not_before, authenticated_at or issued_at)
        if latest > now + self.leeway:
            raise CredentialRefused("token_invalid")
        subject = self.rules.subject(claims)
        if now - self.leeway >= expires_at:
            raise CredentialRefused("token_expired")
        shared = cast("Claims", frozen(claims))
        return VerifiedToken(
            # One issuer, however its name is spelled in this token.
            subject=ExternalIdentity(self.names[0], subject, shared),
            expires_at=expires_at,
            authenticated_at=authenticated_at,
            # Its sessions are not of this application.
            session_id=None,
            has_session=False,
            interactive=self._claims_rules.is_interactive(shared),
            scopes=self._claims_rules.scopes(shared),
        )

    def _check_header(self, header: Mapping[str, object]) -> tuple[str, str]:
        """The algorithm and the key id."""
        algorithm, kid = header.get("alg"), header.get("kid")
        if any(member in header for member in _REFUSED_HEADERS):
            raise CredentialRefused("token_invalid")
        if "typ" in header and not isinstance(header["typ"], str):
            raise CredentialRefused("token_invalid")
        if _typ(header) not in self.rules.types:
            raise CredentialRefused("token_invalid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise CredentialRefused("token_invalid")
        if not isinstance(kid, str) or not 0 < len(kid) <= MAX_KID:
            raise CredentialRefused("token_invalid")
        return algorithm, kid

    def _check_audience(self, claims: Claims) -> None:
        name = self.rules.audience
        named = audience(claims) if name == "aud" else {text(claims, name)}
        if self.audiences.isdisjoint(named):
            raise CredentialRefused("token_invalid")

    def _check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        rules = self.rules
        if ("events" in claims) != (rules.kind == "logout"):
            raise CredentialRefused("token_invalid")
        if "cnf" in claims and not self._allow_bound:
            raise CredentialRefused("token_invalid")
        for name in rules.requires:
            text(claims, name)
        if any(claims.get(name) != value for name, value in self._fixed.items()):
            raise CredentialRefused("token_invalid")
        # A token for several clients is that of the client that got it (OpenID Connect Core, section 3.1.3.7).
        is_shared = rules.kind == "id" and "aud" in claims and len(audience(claims)) > 1
        if is_shared and claims.get("azp") not in [*self.audiences]:
            raise CredentialRefused("token_invalid")
        if _typ(header) not in rules.kind_types and not rules.is_kind(claims):
            raise CredentialRefused("token_invalid")
        if not self.provider.value.is_of_tenant(claims, self.tenant):
            raise CredentialRefused("token_invalid")


def _names(provider: Provider, tenant: str, issuer: str | None) -> tuple[str, ...]:
    """Each `iss` of the tokens."""
    row = provider.value
    match = re.fullmatch(row.tenant.pattern, tenant)
    if match is None:
        raise ConfigurationError(f"{provider}: the tenant {tenant!r} is not {row.tenant.words}.")
    if issuer is None:
        return tuple(name.format(tenant, **match.groupdict()) for name in row.issuers)
    if row.issuers == ("{}",):
        raise ConfigurationError(
            f"{provider}: the tenant is the issuer. Leave out issuer={issuer!r}."
        )
    return (issuer,)


def _rules(provider: Provider, token: str | TokenRules | None) -> TokenRules:
    if isinstance(token, TokenRules):
        return token
    for rules in provider.value.tokens:
        if token in {None, rules.kind}:
            return rules
    kinds = " or ".join(f"token={rules.kind!r}" for rules in provider.value.tokens)
    raise ConfigurationError(f"{provider} has no tokens of the kind {token!r}. Write {kinds}.")


def _fixed(
    provider: Provider, rules: TokenRules, required: Mapping[str, str] | None
) -> dict[str, str]:
    """The claims that have exactly one text: those of the provider's row, and those that the application requires."""
    fixed = {**(required or {}), **rules.fixed}
    for name, value in (required or {}).items():
        if fixed[name] != value:
            raise ConfigurationError(
                f"required={{{name!r}: {value!r}}} fits no token: with {provider} the claim is always {fixed[name]!r}."
                f" Leave {name!r} out of required."
            )
    return fixed


def _typ(header: Mapping[str, object]) -> str | None:
    typ = header.get("typ")
    return typ.lower() if isinstance(typ, str) else None


def share_keys(issuers: Iterable[ExternalIssuer]) -> None:
    """Let those of one issuer that fetch its keys use one key set."""
    shared: dict[str, KeySet] = {}
    for issuer in issuers:
        if issuer.shares_keys:
            issuer.keys = shared.setdefault(issuer.names[0], issuer.keys)
