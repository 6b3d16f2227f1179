"""What a token of an identity provider costs, beside the two libraries that people check such tokens with.

All three get the same token and the same key, and check the same: the signature by the one algorithm that is allowed, `iss`,
`aud`, `exp` and `iat`. PyJWT and joserfc return claims. What is measured of this library returns a principal: it reads the
header, finds the key by `kid`, refuses ID tokens, bounds the lifetime and asks for the owner as well.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from datetime import timedelta

import jwt
from joserfc import jwk
from joserfc import jwt as joserfc_jwt
from joserfc.errors import SecurityWarning

from msk_auth import Authenticator, KeyRing, SigningKey
from msk_auth.stores.memory import MemoryKeyStore
from msk_auth.tokens import AlgorithmName
from msk_auth.tokens.issuers import ExternalIssuer, PinnedKeySet, Provider

from . import subjects
from .machine import describe
from .result import Chart, Column, Result
from .timing import Call, Scale, Work, rows, take_turns

ALGORITHMS: tuple[AlgorithmName, ...] = ("RS256", "ES256", "Ed25519")
ISSUER, AUDIENCE = "https://login.example.com", "https://api.example.com"


def by_pyjwt(token: str, jwks: dict[str, list[dict[str, str]]], header_name: str) -> Call:
    """As its documentation shows it."""
    key = jwt.PyJWKSet.from_dict(jwks)["k"]

    def work() -> None:
        claims = jwt.decode(
            token,
            key,
            algorithms=[header_name],
            issuer=ISSUER,
            audience=AUDIENCE,
            options={"require": ["iss", "aud", "exp", "iat", "sub"]},
        )
        assert claims["sub"] == "ada"

    return work


def by_joserfc(token: str, jwks: dict[str, list[dict[str, str]]], header_name: str) -> Call:
    """As its documentation shows it."""
    keys = jwk.KeySet.import_key_set(jwks)  # type: ignore[arg-type]
    # RFC 9864 renames EdDSA, the name that identity providers use.
    warnings.simplefilter("ignore", SecurityWarning)

    def work() -> None:
        decoded = joserfc_jwt.decode(token, keys, algorithms=[header_name])
        joserfc_jwt.JWTClaimsRegistry(
            iss={"essential": True, "value": ISSUER},
            aud={"essential": True, "value": AUDIENCE},
            exp={"essential": True},
            iat={"essential": True},
            sub={"essential": True},
        ).validate(decoded.claims)
        assert decoded.claims["sub"] == "ada"

    return work


def by_msk_auth(
    token: str, jwks: dict[str, list[dict[str, str]]], lease: timedelta | None = None
) -> Call:
    """Three lines in an application."""
    authenticator = Authenticator(
        MemoryKeyStore(),
        find_owner=subjects.find_owner,
        issuers=[
            ExternalIssuer(
                Provider.OIDC, ISSUER, audience=AUDIENCE, grants=None, keys=PinnedKeySet(jwks)
            )
        ],
        find_external_owner=lambda _external: subjects.OWNER,
        lease=lease,
    )
    header = [f"Bearer {token}".encode()]

    def work() -> None:
        assert authenticator.authenticate(header).owner.id == "ada"

    return work


def works() -> Iterator[Work]:
    """Everything that is measured here, ready to be called."""
    for algorithm in ALGORITHMS:
        key = SigningKey.generate("k", algorithm)
        jwks = KeyRing([key]).jwks()
        header_name = "EdDSA" if algorithm == "Ed25519" else algorithm
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 3600}
        token = jwt.encode(claims, key.export(), header_name, headers={"kid": "k", "typ": "at+jwt"})
        pyjwt = f"{algorithm}, PyJWT"
        yield Work(algorithm, pyjwt, by_pyjwt(token, jwks, header_name))
        yield Work(algorithm, f"{algorithm}, joserfc", by_joserfc(token, jwks, header_name), pyjwt)
        yield Work(algorithm, f"{algorithm}, msk_auth", by_msk_auth(token, jwks), pyjwt)
        yield Work(
            algorithm,
            f"{algorithm}, msk_auth, leased",
            by_msk_auth(token, jwks, subjects.LONG_LEASE),
            pyjwt,
        )


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe("pyjwt", "joserfc", "cryptography")
    made = list(works())
    samples = take_turns(made, rounds=scale.pick(2, 60), seconds=scale.pick(1, 80) / 10_000)
    return Result(
        name="issuers",
        title="One token of an identity provider, in process",
        method="Processor time of one check of an access token of 1 hour, with the key set in memory. PyJWT and joserfc check"
        " signature, issuer, audience and times; `msk_auth` makes a principal. A lease lasts 5 seconds here.",
        columns=[Column("time", "Time", "µs"), Column("ratio", "Ratio")],
        rows=rows(made, samples),
        chart=Chart("bars", "processor time of one token, µs", "time", is_logarithmic=True),
        measured=measured,
    )
