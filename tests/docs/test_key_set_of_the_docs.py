"""The recipe that the documentation prints for a provider's key set reads the key sets that providers publish (RFC 7517)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from msk_auth import ConfigurationError, KeyRing, SigningKey

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "identity-provider.md"


def recipe() -> Callable[[dict[str, Any]], KeyRing]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (block,) = [each for each in blocks if "def pinned(" in each]
    names: dict[str, Any] = {}
    exec(block, names)
    pinned: Callable[[dict[str, Any]], KeyRing] = names["pinned"]
    return pinned


RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
RSA = RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True)
P256 = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True)
P384 = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP384R1()).public_key(), as_dict=True)
ED25519 = SigningKey.generate("any", "Ed25519").jwk() or {}
SIGNING = {
    "RSA": ({**RSA, "use": "sig", "alg": "RS256"}, "RS256"),
    "RSA without use and alg": (RSA, "RS256"),
    "RSA for verifying": ({**RSA, "key_ops": ["verify"]}, "RS256"),
    "P-256": ({**P256, "use": "sig", "alg": "ES256"}, "ES256"),
    "Ed25519": ({**ED25519, "alg": "Ed25519"}, "Ed25519"),
    "Ed25519 by its older name": ({**ED25519, "alg": "EdDSA"}, "Ed25519"),
}
OTHERS = {
    "RSA for encryption": {**RSA, "use": "enc", "alg": "RSA-OAEP"},
    "RSA for encryption, with a signing alg": {**RSA, "use": "enc", "alg": "RS256"},
    "RSA of an algorithm that is not in the profile": {**RSA, "use": "sig", "alg": "PS512"},
    "RSA for wrapping": {**RSA, "key_ops": ["wrapKey"]},
    "P-256 for key agreement": {**P256, "alg": "ECDH-ES"},
    "P-384": {**P384, "use": "sig", "alg": "ES384"},
    "X25519": {"kty": "OKP", "crv": "X25519", "x": "hSDwCYkwp1R0i33ctD73Wg2_Og0mOBr066SpjqqbTmo"},
    "a secret": {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"},
    "a type of the future": {"kty": "AKP", "alg": "ML-DSA-65", "pub": "AA", "use": "sig"},
    "no type": {"use": "sig"},
}


@pytest.mark.parametrize("name", SIGNING)
def test_a_key_that_signs_is_taken_from_among_others(name: str) -> None:
    jwk, algorithm = SIGNING[name]
    others = [{**other, "kid": f"other-{n}"} for n, other in enumerate(OTHERS.values())]
    nameless = {each: value for each, value in jwk.items() if each != "kid"}
    ring = recipe()({"keys": [*others, {**jwk, "kid": "ours"}, nameless]})
    assert [(key.kid, key.algorithm) for key in ring.keys] == [("ours", algorithm)]


@pytest.mark.parametrize("name", OTHERS)
def test_a_key_that_signs_nothing_here_is_skipped(name: str) -> None:
    with pytest.raises(ConfigurationError, match="at least one key"):
        recipe()({"keys": [{**OTHERS[name], "kid": "k"}]})
