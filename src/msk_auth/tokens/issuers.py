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

`providers` has a row for each provider. Every token is checked in this order:

1. `iss` is one of the issuer's names; otherwise the token is another issuer's.
2. The header has none of `crit`, `b64`, `zip` and `enc`; the issuer uses its `typ`. Other members are ignored
   (RFC 7515, section 4): no key is ever taken from a token.
3. `kid` names keys of the issuer's set, and one of them made the signature, with an algorithm of that key.
4. The token is for this audience.
5. The token has the right kind and tenant, by the provider's row. `events` is in logout tokens and other security events (RFC
   8417), never in a login. A token with `cnf` is bound to a key (RFC 7800), and a client that sends it as a bearer token has not
   proved possession of that key.
6. `exp` and `iat` are present, `nbf` and `auth_time` optional, as numbers (RFC 7519, section 2); `exp - iat` is within the longest
   lifetime.
7. Neither the token nor its login is from the future, and the token has not expired, within the leeway. A login may be later than
   `iat`: Entra sets `iat` back by five minutes, for machines whose clocks are behind.
8. The grants can be read.

The last step decides whether the token is a person's login; in doubt it is not: see `claims`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, cast

from msk_auth.core.errors import ConfigurationError, CredentialRefused
from msk_auth.core.model import ExternalIdentity
from msk_auth.core.tokens import ParsedToken, TokenIssuer, VerifiedToken

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


class ExternalIssuer(TokenIssuer):
    """An issuer of tokens other than this application.

    You may configure an issuer several times, for different audiences, kinds and tenants. The first that accepts a token counts.

    Args:
        provider: The identity provider.
        tenant: Your part of the provider, such as a domain or a project; for `Provider.OIDC` the `iss`, exactly as in the discovery
            document. The provider's section of the reference explains the format.
        audience: The audience of tokens for this application: the API's identifier, for ID tokens the client's id,
            or as in the provider's section. A token must have one of several audiences.
        grants: The limit of a token's permissions, out of its owner's. There is no default, since
            without a limit a token has all of the owner's permissions.

            - A claim's name, such as `"scope"` or `"permissions"`: a string of names separated by spaces (RFC 6749,
              section 3.3), or an array of strings. A missing or empty claim grants nothing. Any other value is refused.
            - A function of the claims, for nested claims and other names. It returns the names, and `()` to grant
              nothing. A token is refused if the function raises or returns None, a single string, an object, or anything but
              strings.
            - None: only the owner's permissions decide.
        token: The accepted kind, if the provider has access tokens (RFC 9068, for an API) and ID tokens (OpenID Connect
            Core, for a client); None for the provider's first kind. Or your own rules, for tokens that differ from the
            provider's row.
        issuer: The `iss`, for your own instance or domain; None for the provider's.
        interactive: Takes the claims and returns True for a person's login. Without this function, the provider's row decides.
            Any other result, and an exception, means a machine. A token with `act` is a machine's, without calling the function.
        keys: A :class:`PinnedKeySet`, or a :class:`RemoteKeySet` with your settings. Without it the issuer's keys are fetched;
            all configurations of an issuer share them.
        required: Claims that must have exactly this text, such as an organisation's.
        max_lifetime: The longest time from `iat` to `exp`. Only its expiry ends a token.
        leeway: The accepted difference between the clocks of the issuer and this machine.
        allow_bound: True accepts tokens that are bound to a key (`cnf`: DPoP, mutual TLS) as plain bearer tokens. Pass True only
            if a proxy has checked the proof of possession.

    Raises:
        ConfigurationError: The tenant is malformed, the provider has no tokens of this kind or does not take an argument, a name
            is empty, a duration is out of range, or a rule is async. `required` contradicts a claim that the
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
                "An issuer needs its own name and this application's audience."
            )
        lifetime = rules.max_lifetime if max_lifetime is None else max_lifetime
        if lifetime < timedelta(seconds=1):
            raise ConfigurationError("max_lifetime must be at least one second.")
        if not timedelta(0) <= leeway <= timedelta(minutes=5):
            raise ConfigurationError("leeway must be between 0 and 5 minutes.")
        if rules.is_person is None and interactive is not None:
            raise ConfigurationError(
                f"{provider} takes no rule `interactive`: its tokens are never a person's login."
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
        self.selects: object = (
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
        """Begin to fetch the keys in the background. Opening an authenticator calls this."""
        self.keys.open()

    def close(self) -> None:
        """Stop fetching. Closing an authenticator calls this."""
        self.keys.close()

    def pending(self, token: ParsedToken) -> Future[None] | None:
        """The fetch of keys for which a token's verification must wait; None if there is none.

        Raises:
            CredentialRefused: The token's header is wrong, so no keys are needed.
        """
        if token.claims.get("iss") not in self.names:
            return None
        self._check_header(token.header)
        return self.keys.pending()

    def authenticate(self, token: ParsedToken, now: datetime) -> VerifiedToken | None:
        """Verify a token; None for another issuer's token.

        Raises:
            CredentialRefused: `token_expired` if the token is valid except that it has expired, otherwise `token_invalid`.
            SigningKeysUnavailable: The keys could not be fetched.
        """
        claims = token.claims
        if claims.get("iss") not in self.names:
            return None
        header = token.header
        algorithm, kid = self._check_header(header)
        keys = self.keys.find(kid)
        if not any(key.verify(algorithm, token.message, token.signature) for key in keys):
            raise CredentialRefused("token_invalid")
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
            # The issuer's first name, however this token spells it.
            subject=ExternalIdentity(self.names[0], subject, shared),
            expires_at=expires_at,
            authenticated_at=authenticated_at,
            # The issuer's sessions are not this application's.
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

    def _check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """Check that the token is for this application, and of the right kind and tenant."""
        rules = self.rules
        named = audience(claims) if rules.audience == "aud" else {text(claims, rules.audience)}
        # A token for several clients belongs to the client that requested it (OpenID Connect Core, section 3.1.3.7).
        is_shared = rules.kind == "id" and "aud" in claims and len(audience(claims)) > 1
        for name in rules.requires:
            text(claims, name)
        if (
            self.audiences.isdisjoint(named)
            or (is_shared and claims.get("azp") not in [*self.audiences])
            or ("events" in claims) != (rules.kind == "logout")
            or ("cnf" in claims and not self._allow_bound)
            or any(claims.get(name) != value for name, value in self._fixed.items())
            or (_typ(header) not in rules.kind_types and not rules.is_kind(claims))
            or not self.provider.value.is_of_tenant(claims, self.tenant)
        ):
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
    """The claims with a fixed text: those of the provider's row, and those that the application requires."""
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
    """Let all configurations of an issuer that fetch its keys share a key set."""
    shared: dict[str, KeySet] = {}
    for issuer in issuers:
        if issuer.shares_keys:
            issuer.keys = shared.setdefault(issuer.names[0], issuer.keys)
