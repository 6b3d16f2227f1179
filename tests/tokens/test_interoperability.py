"""What is issued here is read by another library, by the published key set alone. (PyJWT: `test_signing.py`.)"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet
from tests.core.support import AUDIENCE, NOW, profile, signing_key

from msk_auth import AlgorithmName, SigningKey


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [("ES256", "ES256"), ("RS256", "RS256"), ("Ed25519", "Ed25519"), ("Ed25519", "EdDSA")],
)
@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
def test_joserfc_reads_an_issued_token(algorithm: AlgorithmName, name: str) -> None:
    options: Any = {"ed25519_name": name} if algorithm == "Ed25519" else {}
    key = SigningKey("k1", algorithm, signing_key(algorithm).export(), **options)
    issued = profile(key).issue(subject="ann", now=NOW, lifetime=timedelta(hours=1))
    keys = KeySet.import_key_set(cast(Any, profile(key).jwks()))
    read = jwt.decode(issued, keys, algorithms=[name])
    assert (read.header["alg"], read.header["kid"]) == (name, "k1")
    assert (read.claims["sub"], read.claims["aud"]) == ("ann", AUDIENCE)
