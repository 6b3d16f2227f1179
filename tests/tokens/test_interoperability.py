"""What is issued here is read by other libraries, by the published key set alone. (PyJWT: `test_signing.py`; Node: `jose/`.)"""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet
from tests.core.support import AUDIENCE, NOW, profile, signing_key

from msk_auth.tokens import AlgorithmName


def issue(algorithm: AlgorithmName) -> tuple[str, Any]:
    """A token, and the key set that is published for it."""
    issuer = profile(signing_key(algorithm))
    return issuer.issue(subject="ann", now=NOW, lifetime=timedelta(hours=1)), issuer.jwks()


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [("ES256", "ES256"), ("RS256", "RS256"), ("Ed25519", "EdDSA")],
)
@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
def test_joserfc_reads_an_issued_token(algorithm: AlgorithmName, name: str) -> None:
    issued, jwks = issue(algorithm)
    read = jwt.decode(issued, KeySet.import_key_set(jwks), algorithms=[name])
    assert (read.header["alg"], read.header["kid"]) == (name, "k1")
    assert (read.claims["sub"], read.claims["aud"]) == ("ann", AUDIENCE)


# It does not know the name Ed25519 (RFC 9864): that is why tokens have EdDSA.
@pytest.mark.parametrize(
    ("algorithm", "name"), [("ES256", "ES256"), ("RS256", "RS256"), ("Ed25519", "EdDSA")]
)
def test_authlib_reads_an_issued_token(algorithm: AlgorithmName, name: str) -> None:
    # Its filter of warnings, set when it is imported, goes before pytest's.
    from authlib.deprecate import AuthlibDeprecationWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AuthlibDeprecationWarning)
        from authlib.jose import JsonWebKey, JsonWebToken

    issued, jwks = issue(algorithm)
    read: Any = JsonWebToken([name]).decode(issued, JsonWebKey.import_key_set(jwks))
    assert (read.header["alg"], read.header["kid"]) == (name, "k1")
    assert (read["sub"], read["aud"]) == ("ann", AUDIENCE)
