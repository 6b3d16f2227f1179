"""The keys that sign login tokens: one algorithm each, in a ring in which the newest signs.

The cryptography is PyJWT's. What it leaves open is closed here, while starting: a key has exactly
one algorithm, HMAC secrets are not weak (`weak_secrets`), RSA moduli have a least size, curves are
fixed (RFC 8725, sections 3.1, 3.2 and 3.5).
"""

from __future__ import annotations

import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from msk_auth.core.errors import ConfigurationError
from msk_auth.core.weak_secrets import check_secret

if TYPE_CHECKING:
    from jwt.algorithms import Algorithm

AlgorithmName: TypeAlias = Literal["HS256", "ES256", "Ed25519", "RS256"]
"""The algorithms of the profile, by their names in a token's header (RFC 7518; RFC 9864 for Ed25519)."""

_ALGORITHMS = ("HS256", "ES256", "Ed25519", "RS256")
_ED25519_NAMES = ("EdDSA", "Ed25519")
_KID = re.compile(r"[0-9A-Za-z._-]{1,64}")
_GENERATED_SECRET = 32
_MIN_RSA_BITS = 2048


class SigningKey:
    """One key of a ring.

    Args:
        kid: Its id in token headers: 1 to 64 of `0-9A-Za-z._-`.
        algorithm: The one algorithm it is used with.
        key: For HS256 a secret of 32 to 127 random bytes; published examples, patterns and public
            keys are refused. Otherwise a PEM: a private key signs and verifies, a public key
            verifies only.

        ed25519_name: What an Ed25519 key is called in headers and in the JWKS. `EdDSA` (RFC 8037) is
            what PyJWT, authlib and node's `jose` read; `Ed25519` is its newer name (RFC 9864). Both
            are read here. Other algorithms have one name.

    Raises:
        ConfigurationError: The key is too weak, cannot be read, or is of another kind than the
            algorithm's.
    """

    __slots__ = ("_public", "_scheme", "_secret", "algorithm", "can_sign", "header_name", "kid")

    def __init__(
        self,
        kid: str,
        algorithm: AlgorithmName,
        key: bytes,
        *,
        ed25519_name: Literal["EdDSA", "Ed25519"] = "EdDSA",
    ) -> None:
        if _KID.fullmatch(kid) is None:
            raise ConfigurationError(f"The key id {kid!r} needs 1 to 64 characters of 0-9A-Za-z._-")
        if algorithm not in _ALGORITHMS:
            raise ConfigurationError(
                f"The algorithm {algorithm!r} is not supported. Use one of {_ALGORITHMS}."
            )
        if not isinstance(cast("object", key), bytes):
            raise ConfigurationError(f"The key {kid!r} is not of type bytes: use text.encode().")
        self.kid: str = kid
        self.algorithm: AlgorithmName = algorithm
        if ed25519_name not in _ED25519_NAMES:
            raise ConfigurationError(
                f"ed25519_name must be one of {_ED25519_NAMES}, not {ed25519_name!r}."
            )
        self.header_name: str = ed25519_name if algorithm == "Ed25519" else algorithm
        self._scheme = _scheme(algorithm)
        if algorithm == "HS256":
            check_secret(f"secret of the key {kid!r}", key)
            self._secret = self._public = key
        else:
            self._secret, self._public = _key_pair(kid, algorithm, key)
        self.can_sign: bool = self._secret is not None

    @classmethod
    def generate(cls, kid: str, algorithm: AlgorithmName) -> SigningKey:
        """A fresh key. Keep it with :meth:`export`."""
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
            return self._secret
        return _private_pem(self._secret)

    def sign(self, message: bytes) -> bytes:
        """The signature of `message`."""
        return self._scheme.sign(message, self._secret)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """True if `signature` is this key's signature of `message`."""
        return self._scheme.verify(message, self._public, signature)

    def is_named(self, algorithm: object) -> bool:
        """True if a token's `alg` means this key's algorithm."""
        if self.algorithm == "Ed25519":
            return algorithm in _ED25519_NAMES
        return algorithm == self.algorithm

    def jwk(self) -> dict[str, object] | None:
        """The public key as a JWK (RFC 7517), or None for a secret key."""
        if self.algorithm == "HS256":
            return None
        members = _public_members(self._public)
        return {**members, "kid": self.kid, "alg": self.header_name, "use": "sig"}


class KeyRing:
    """The keys of an issuer: the first signs, all verify, one that was taken out does neither.

    Args:
        keys: Newest first; at least one, each with its own `kid`.

    Raises:
        ConfigurationError: The ring is empty or two keys share an id.
    """

    __slots__ = ("_by_kid", "keys")

    def __init__(self, keys: Sequence[SigningKey]) -> None:
        if not keys:
            raise ConfigurationError("A key ring needs at least one key: KeyRing([SigningKey(…)]).")
        self.keys: tuple[SigningKey, ...] = tuple(keys)
        self._by_kid = {key.kid: key for key in self.keys}
        if len(self._by_kid) != len(self.keys):
            raise ConfigurationError(
                f"Two keys of the ring share an id: {[key.kid for key in self.keys]}."
            )

    def __repr__(self) -> str:
        return f"<KeyRing {[key.kid for key in self.keys]}>"

    @property
    def signing_key(self) -> SigningKey:
        """The newest key.

        Raises:
            ConfigurationError: It is a public key, so this ring can only verify.
        """
        newest = self.keys[0]
        if not newest.can_sign:
            raise ConfigurationError(
                f"The newest key {newest.kid!r} is a public key and cannot sign."
            )
        return newest

    def find(self, kid: str) -> SigningKey | None:
        """The key with this id, or None if there is none (any more)."""
        return self._by_kid.get(kid)

    def jwks(self) -> dict[str, list[dict[str, object]]]:
        """The public keys as a JWK set (RFC 7517, section 5); secret keys are not in it."""
        jwks = (key.jwk() for key in self.keys)
        return {"keys": [jwk for jwk in jwks if jwk is not None]}


# PyJWT loads `cryptography`, which takes longer than everything else here together; an application
# that uses no tokens should not wait for it. So it is imported when the first key is made, in the
# functions below.


def _scheme(algorithm: AlgorithmName) -> Algorithm:
    from jwt import get_algorithm_by_name

    # PyJWT knows Ed25519 under the older name, which also stands for Ed448; `_key_pair` refuses the
    # latter.
    return get_algorithm_by_name("EdDSA" if algorithm == "Ed25519" else algorithm)


def _key_pair(kid: str, algorithm: AlgorithmName, pem: bytes) -> tuple[Any, Any]:
    """The private key (None if `pem` holds a public one) and the public key, checked to be of the algorithm's kind."""
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
        # Without the cause: a parser's message may quote what it could not read.
        raise ConfigurationError(
            f"The key {kid!r} is not a PEM that can be read without a password."
        ) from None
    match algorithm:
        case "RS256" if isinstance(public, rsa.RSAPublicKey):
            if public.key_size < _MIN_RSA_BITS:
                raise ConfigurationError(
                    f"The RSA key {kid!r} has {public.key_size} bits and needs {_MIN_RSA_BITS}."
                )
        case "ES256" if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(
            public.curve, ec.SECP256R1
        ):
            pass
        case "Ed25519" if isinstance(public, ed25519.Ed25519PublicKey):
            pass
        case _:
            raise ConfigurationError(f"The key {kid!r} is not of the kind that {algorithm} needs.")
    return private, public


def _public_members(public: Any) -> dict[str, object]:
    """The members of a JWK that describe a public key (RFC 7518, section 6; RFC 8037, section 2)."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    if isinstance(public, ed25519.Ed25519PublicKey):
        raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
        return {"kty": "OKP", "crv": "Ed25519", "x": _base64url(raw)}
    numbers = public.public_numbers()
    if isinstance(public, ec.EllipticCurvePublicKey):
        # Coordinates have the length of the curve's field, with zeros in front: one in 128 keys has such a coordinate.
        x, y = (_base64url(value.to_bytes(32, "big")) for value in (numbers.x, numbers.y))
        return {"kty": "EC", "crv": "P-256", "x": x, "y": y}
    n, e = (
        _base64url(value.to_bytes((value.bit_length() + 7) // 8, "big"))
        for value in (numbers.n, numbers.e)
    )
    return {"kty": "RSA", "n": n, "e": e}


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _generate(algorithm: AlgorithmName) -> bytes:
    if algorithm == "HS256":
        return secrets.token_bytes(_GENERATED_SECRET)
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    match algorithm:
        case "ES256":
            return _private_pem(ec.generate_private_key(ec.SECP256R1()))
        case "Ed25519":
            return _private_pem(ed25519.Ed25519PrivateKey.generate())
        case _:
            return _private_pem(
                rsa.generate_private_key(public_exponent=65537, key_size=_MIN_RSA_BITS)
            )


def _private_pem(private: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    pem: bytes = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem
