"""Issues and verifies the application's own JWTs (RFC 7519, RFC 8725, RFC 9068).

A token is a compact, signed JWT. These rules are checked in this order:

1. The token has at most 16,384 characters: three segments of canonical base64url, so that a token has one
   spelling.
2. The header has `alg`, `kid` and `typ` and no other member: no embedded or remote key, no `crit`,
   `b64` or `zip`. `typ` is `at+jwt`. `kid` names a key of the profile, and `alg` is that key's only
   algorithm, which for Ed25519 has two names.
3. The signature is right. No claim is trusted before this.
4. `iss` and `aud` are ours. `sub` and `jti` are non-empty text; `iat`, `exp` and `auth_time` are
   whole seconds with `auth_time <= iat < exp`; `exp - iat` is within the longest lifetime; `nbf`
   and `sid` are optional, and checked. `events` and `cnf` are refused: a security event is not a
   login, and a token bound to a key is not a bearer token.
5. The token is neither from the future nor expired, within the leeway.

The last step decides whether the token is a person's login: see `TokenProfile`. With `act` another party acts for the person, so it
is not.

JSON objects with a duplicate member are refused at any depth, and so is JSON with more than 32 nested objects and arrays.

PyJWT does the cryptography. This module adds checks at start: a key has exactly one algorithm, HMAC secrets
are not weak (`weak_secrets`), RSA moduli have a minimum size, curves are fixed (RFC 8725, sections 3.1, 3.2 and 3.5).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, cast

from msk_auth.core.errors import (
    ConfigurationError,
    CredentialRefused,
    InteractiveRequired,
    LoginTooOld,
)
from msk_auth.core.model import CredentialKind, Principal, freeze_permissions
from msk_auth.core.tokens import (
    ParsedToken,
    TokenIssuer,
    VerifiedToken,
    b64encode,
    encode_segment,
)
from msk_auth.core.weak_secrets import check_secret

from .claims import MAX_TEXT, Claims, is_text, moment, text
from .claims import audience as audience_of
from .claims import names as names_of
from .keysets import ED25519, scheme_of

_TYPE: Final = "at+jwt"
# A private claim (RFC 7519, section 4.3) of machines' tokens.
_KIND: Final = "msk_kind"
# A private claim of tokens that were exchanged for a token with grants: a list of names.
_SCOPES: Final = "msk_scopes"


class TokenProfile(TokenIssuer):
    """Issues and verifies the application's own tokens.

    A `sub` is unique only within its issuer (RFC 7519, section 4.1.2), and becomes the owner's id
    unchanged. Accept a second profile only if its subjects are the ids of this application's users:
    otherwise a stranger's `sub` could be one of them. For tokens of other issuers use
    :class:`~msk_auth.tokens.issuers.ExternalIssuer`.

    A token is a person's unless `issue` or `exchange` marked it as a machine's. A token that a public key
    verified is a machine's, too, since this application may not have issued it.

    Args:
        issuer: The `iss` of all tokens.
        audience: The `aud` of this application.
        keys: The first key signs, all keys verify. At least one key, each with its own `kid`.
        max_lifetime: The longest time from `iat` to `exp`.
        leeway: The accepted difference between the clocks of issuer and verifier.
        own_public_keys: True if the public keys among `keys` are the application's own, so that their
            tokens can be persons' as well. For a process without a private key.

    Raises:
        ConfigurationError: A name is empty, a duration is out of range, there is no key, or two keys share an id.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str,
        keys: Sequence[SigningKey],
        max_lifetime: timedelta = timedelta(hours=24),
        leeway: timedelta = timedelta(0),
        own_public_keys: bool = False,
    ) -> None:
        if not issuer or not audience:
            raise ConfigurationError(
                "A token profile needs an issuer and an audience, such as the service's URL."
            )
        if max_lifetime < timedelta(seconds=1):
            raise ConfigurationError("max_lifetime must be at least one second.")
        if not timedelta(0) <= leeway <= timedelta(minutes=5):
            raise ConfigurationError("leeway must be between 0 and 5 minutes.")
        self.issuer = issuer
        self.names: tuple[str, ...] = (issuer,)
        self.audience = audience
        self.keys: tuple[SigningKey, ...] = tuple(keys)
        self._by_kid = {key.kid: key for key in self.keys}
        if not self.keys:
            raise ConfigurationError("A token profile needs at least one key: [SigningKey(…)].")
        if len(self._by_kid) != len(self.keys):
            raise ConfigurationError(
                f"Two keys of a token profile share an id: {[key.kid for key in self.keys]}."
            )
        self.max_lifetime = max_lifetime
        self.leeway = leeway
        self._own_public_keys = own_public_keys

    def issue(
        self,
        *,
        subject: str,
        now: datetime,
        lifetime: timedelta,
        authenticated_at: datetime | None = None,
        session_id: str | None = None,
        interactive: bool = True,
        scopes: Collection[str] | None = None,
    ) -> str:
        """A signed token, for a person who has logged in to this application.

        Call this after checking a password, or for the login of an open session. To exchange another
        issuer's token call :meth:`exchange`.

        Args:
            subject: The owner's id.
            now: The time of issue.
            lifetime: How long the token is valid; at most `max_lifetime`, in whole seconds.
            authenticated_at: The time when the person logged in; None means now. When renewing, pass the
                old time.
            session_id: The login session that ends together with this token.
            interactive: True if a person logged in. Any other value marks the token as a
                machine's, which `require_interactive` refuses.
            scopes: The permissions that limit the token, of the owner's; None means all of them.

        Raises:
            ConfigurationError: The lifetime is out of range, the profile cannot sign, or `scopes` is not a set of strings.
            ValueError: The subject or the session's id is not 1 to 255 printable characters, a time
                has no time zone, or the login is in the future.
        """
        if not timedelta(seconds=1) <= lifetime <= self.max_lifetime:
            raise ConfigurationError(
                f"A token's lifetime must be between 1 second and {self.max_lifetime}."
            )
        for name in (subject, session_id):
            if name is not None and not is_text(name):
                raise ValueError(
                    f"a token's subject and session need 1 to {MAX_TEXT} printable characters"
                )
        for time in (now, authenticated_at):
            if time is not None:
                _check_zone(time)
        issued = int(now.timestamp())
        authenticated = issued if authenticated_at is None else int(authenticated_at.timestamp())
        if authenticated > issued:
            raise ValueError("the login lies in the future")
        claims: dict[str, object] = {
            "iss": self.issuer,
            "aud": self.audience,
            "sub": subject,
            "iat": issued,
            "exp": issued + int(lifetime.total_seconds()),
            "auth_time": authenticated,
            "jti": secrets.token_urlsafe(16),
        }
        if session_id is not None:
            claims["sid"] = session_id
        if interactive is not True:
            claims[_KIND] = CredentialKind.TOKEN.value
        if scopes is not None:
            claims[_SCOPES] = sorted(freeze_permissions(scopes, "scopes"))
        key = self.keys[0]
        header = {"alg": key.header_name, "kid": key.kid, "typ": _TYPE}
        message = f"{encode_segment(header)}.{encode_segment(claims)}".encode()
        return f"{message.decode()}.{b64encode(key.sign(message))}"

    def exchange(
        self,
        principal: Principal[Any],
        *,
        now: datetime,
        lifetime: timedelta,
        session_id: str | None = None,
    ) -> str:
        """A signed token for a principal of another token, with the same kind, age and grants.

        A machine's token gives a machine's token. The new token keeps `auth_time` and the
        limits of the permissions.

        Args:
            principal: The result of `authenticate` for the other token.
            now: The time of issue.
            lifetime: How long the token is valid; at most `max_lifetime`, in whole seconds.
            session_id: A session of this application that ends together with this token. The other
                issuer's session is not kept.

        Raises:
            InteractiveRequired: The principal has an API key. A token would outlive the key's
                revocation and exceed its scopes.
            LoginTooOld: The token is a person's, and the time of the login is unknown.
            ConfigurationError, ValueError: As for :meth:`issue`.
        """
        if principal.kind not in {CredentialKind.INTERACTIVE, CredentialKind.TOKEN}:
            raise InteractiveRequired
        login = principal.authenticated_at
        if login is None and principal.kind is CredentialKind.INTERACTIVE:
            raise LoginTooOld(self.max_lifetime)
        _check_zone(now)
        return self.issue(
            subject=principal.owner.id,
            now=now,
            lifetime=lifetime,
            # Two clocks: the other issuer's may be ahead by its leeway. A machine's token without a login time gets the current
            # time: no guard checks its age.
            authenticated_at=None if login is None else min(login, now),
            session_id=session_id,
            interactive=principal.kind is CredentialKind.INTERACTIVE,
            scopes=principal.scopes,
        )

    def verify(self, token: str, now: datetime) -> VerifiedToken:
        """Check a token against this profile.

        Returns:
            An object with `subject`, `expires_at`, `authenticated_at`, `session_id`, `interactive` and `scopes`.

        Raises:
            CredentialRefused: `token_expired` if the token is valid except that it has expired, otherwise `token_invalid`.
        """
        verified = self.authenticate(ParsedToken(token), now)
        if verified is None:
            raise CredentialRefused("token_invalid")
        return verified

    def authenticate(self, token: ParsedToken, now: datetime) -> VerifiedToken | None:
        """Verify a token by rules 2 to 5; None for another issuer's token.

        Raises:
            CredentialRefused: `token_expired` if the token is valid except that it has expired, otherwise `token_invalid`.
        """
        claims = token.claims
        if claims.get("iss") != self.issuer:
            return None
        key = self._check_signature(token)
        if self.audience not in audience_of(claims):
            raise CredentialRefused("token_invalid")
        issued_at, expires_at = _seconds(claims, "iat"), _seconds(claims, "exp")
        authenticated_at = _seconds(claims, "auth_time")
        not_before = _seconds(claims, "nbf") if "nbf" in claims else issued_at
        # Without leeway: all three come from the issuer's clock.
        if not authenticated_at <= issued_at < expires_at:
            raise CredentialRefused("token_invalid")
        if expires_at - issued_at > self.max_lifetime:
            raise CredentialRefused("token_invalid")
        if max(issued_at, not_before) > now + self.leeway:
            raise CredentialRefused("token_invalid")
        # A security event is not a login, and a token bound to a key is not a bearer token.
        if "events" in claims or "cnf" in claims:
            raise CredentialRefused("token_invalid")
        subject, _token_id = text(claims, "sub"), text(claims, "jti")
        session_id = text(claims, "sid") if "sid" in claims else None
        # The leeway is added to our own side of each comparison: a claim plus a leeway may exceed
        # the maximum of a datetime.
        if now - self.leeway >= expires_at:
            raise CredentialRefused("token_expired")
        return VerifiedToken(
            subject=subject,
            expires_at=expires_at,
            authenticated_at=authenticated_at,
            session_id=session_id,
            has_session=True,
            interactive=self._is_interactive(claims, key),
            scopes=names_of(claims[_SCOPES]) if _SCOPES in claims else None,
        )

    def jwks(self) -> dict[str, list[dict[str, object]]]:
        """The public keys as a JWK set (RFC 7517, section 5), without secret keys."""
        jwks = (key.jwk() for key in self.keys)
        return {"keys": [jwk for jwk in jwks if jwk is not None]}

    def _check_signature(self, token: ParsedToken) -> SigningKey:
        header = token.header
        if set(header) != {"alg", "kid", "typ"} or header["typ"] != _TYPE:
            raise CredentialRefused("token_invalid")
        kid = header["kid"]
        key = self._by_kid.get(kid) if isinstance(kid, str) else None
        if key is None or not key.is_named(header["alg"]):
            raise CredentialRefused("token_invalid")
        if not key.verify(token.message, token.signature):
            raise CredentialRefused("token_invalid")
        return key

    def _is_interactive(self, claims: Claims, key: SigningKey) -> bool:
        person = CredentialKind.INTERACTIVE.value
        is_own = key.can_sign or self._own_public_keys
        return is_own and claims.get(_KIND, person) == person and "act" not in claims


def _check_zone(time: datetime) -> None:
    # Python would take a time without a zone for this machine's local time.
    if time.utcoffset() is None:
        raise ValueError("a token's times need a time zone: datetime.now(UTC)")


def _seconds(claims: Claims, name: str) -> datetime:
    return moment(claims, name, whole=True)


AlgorithmName: TypeAlias = Literal["HS256", "ES256", "Ed25519", "RS256"]
"""The algorithms of the profile, by their names in a token's header (RFC 7518; RFC 9864 for Ed25519)."""

_ALGORITHMS = ("HS256", "ES256", "Ed25519", "RS256")
_KID = re.compile(r"[0-9A-Za-z._-]{1,64}")
_GENERATED_SECRET = 32
_MIN_RSA_BITS = 2048


class SigningKey:
    """A key of a token profile.

    Args:
        kid: The key's id in token headers: 1 to 64 of `0-9A-Za-z._-`.
        algorithm: The only algorithm of this key.
        key: For HS256 a secret of 32 to 127 random bytes; published examples, patterns and public
            keys are refused. Otherwise a PEM: a private key signs and verifies, a public key
            only verifies.

    Raises:
        ConfigurationError: The key is too weak, cannot be read, or does not match the
            algorithm.
    """

    def __init__(
        self,
        kid: str,
        algorithm: AlgorithmName,
        key: bytes,
    ) -> None:
        _check_names(kid, algorithm)
        if not isinstance(cast("object", key), bytes):
            raise ConfigurationError(f"The key {kid!r} is not of type bytes: use text.encode().")
        self.kid: str = kid
        self.algorithm: AlgorithmName = algorithm
        self._names = ED25519 if algorithm == "Ed25519" else (algorithm,)
        self.header_name: str = self._names[0]
        self._scheme = scheme_of(algorithm)
        self._secret: Any
        self._public: Any
        if algorithm == "HS256":
            check_secret(f"secret of the key {kid!r}", key)
            self._secret = self._public = key
        else:
            self._secret, self._public = _key_pair(kid, algorithm, key)
        self.can_sign: bool = self._secret is not None

    @classmethod
    def generate(cls, kid: str, algorithm: AlgorithmName) -> SigningKey:
        """A new key. Store the result of :meth:`export`."""
        # Before an RSA key is generated, which is slow.
        _check_names(kid, algorithm)
        return cls(kid, algorithm, _generate(algorithm))

    def __repr__(self) -> str:
        return f"<SigningKey {self.kid!r} {self.algorithm}>"

    def export(self) -> bytes:
        """The secret or the private PEM, as the constructor takes it.

        Raises:
            ConfigurationError: There is only a public key.
        """
        if not self.can_sign:
            raise ConfigurationError(
                f"The key {self.kid!r} is a public key and has nothing to export."
            )
        if self.algorithm == "HS256":
            return bytes(self._secret)
        return _private_pem(self._secret)

    def sign(self, message: bytes) -> bytes:
        """The signature of `message`.

        Raises:
            ConfigurationError: There is only a public key.
        """
        if not self.can_sign:
            raise ConfigurationError(f"The key {self.kid!r} is a public key and cannot sign.")
        return self._scheme.sign(message, self._secret)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """True if `signature` is this key's signature of `message`."""
        return self._scheme.verify(message, self._public, signature)

    def is_named(self, algorithm: object) -> bool:
        """True if a token's `alg` names this key's algorithm."""
        return algorithm in self._names

    def jwk(self) -> dict[str, object] | None:
        """The public key as a JWK (RFC 7517), or None for a secret key."""
        if self.algorithm == "HS256":
            return None
        members: dict[str, object] = self._scheme.to_jwk(self._public, as_dict=True)
        members.pop("key_ops", None)
        if self.algorithm == "ES256":
            # With leading zeros, which one of 128 keys has: PyJWT before 2.10 leaves them out (RFC 7518, section 6.2.1.2).
            numbers = self._public.public_numbers()
            for name in ("x", "y"):
                members[name] = b64encode(getattr(numbers, name).to_bytes(32, "big"))
        return {**members, "kid": self.kid, "alg": self.header_name, "use": "sig"}


def _check_names(kid: str, algorithm: str) -> None:
    if _KID.fullmatch(kid) is None:
        raise ConfigurationError(f"The key id {kid!r} needs 1 to 64 characters of 0-9A-Za-z._-")
    if algorithm not in _ALGORITHMS:
        raise ConfigurationError(
            f"The algorithm {algorithm!r} is not supported. Use one of {_ALGORITHMS}."
        )


# The functions below import `cryptography` when the first key is made: see `scheme_of`.


def _key_pair(kid: str, algorithm: AlgorithmName, pem: bytes) -> tuple[Any, Any]:
    """The private key (None for a public PEM) and the public key, checked against the algorithm."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    private: Any = None
    try:
        if b"PRIVATE KEY" in pem:
            private = serialization.load_pem_private_key(pem, password=None)
            public: Any = private.public_key()
        else:
            public = serialization.load_pem_public_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Without the cause: a parser's message may quote the PEM.
        raise ConfigurationError(
            f"The key {kid!r} is not a PEM that can be read without a password."
        ) from None
    kinds: dict[str, Any] = {
        "ES256": ec.EllipticCurvePublicKey,
        "Ed25519": ed25519.Ed25519PublicKey,
        "RS256": rsa.RSAPublicKey,
    }
    is_of_kind = isinstance(public, kinds[algorithm])
    if not is_of_kind or (algorithm == "ES256" and not isinstance(public.curve, ec.SECP256R1)):
        raise ConfigurationError(f"The key {kid!r} is not of the kind that {algorithm} needs.")
    if algorithm == "RS256" and public.key_size < _MIN_RSA_BITS:
        raise ConfigurationError(
            f"The RSA key {kid!r} has {public.key_size} bits and needs {_MIN_RSA_BITS}."
        )
    return private, public


def _generate(algorithm: AlgorithmName) -> bytes:
    if algorithm == "HS256":
        return secrets.token_bytes(_GENERATED_SECRET)
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if algorithm == "ES256":
        return _private_pem(ec.generate_private_key(ec.SECP256R1()))
    if algorithm == "Ed25519":
        return _private_pem(ed25519.Ed25519PrivateKey.generate())
    return _private_pem(rsa.generate_private_key(public_exponent=65537, key_size=_MIN_RSA_BITS))


def _private_pem(private: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem: bytes = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem
