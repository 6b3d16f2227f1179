"""Tokens between this library and Node's `jose`, in both directions. Started by `make test-clients`, which installs `jose`."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msk_auth import Authenticator, ExternalIdentity, Owner, SigningKey, TokenProfile
from msk_auth.stores.memory import MemoryKeyStore
from msk_auth.tokens import AlgorithmName
from msk_auth.tokens.issuers import ExternalIssuer, PinnedKeySet, Provider

ISSUER, AUDIENCE = "https://login.example.com", "https://api.example.com"
ISSUED: list[tuple[AlgorithmName, str]] = [
    ("ES256", "ES256"),
    ("RS256", "RS256"),
    ("Ed25519", "EdDSA"),
]
READ = ["RS256", "PS384", "ES256", "ES512", "EdDSA", "Ed25519"]


def main(node: Path, folder: Path) -> None:
    """Exchange tokens.

    Args:
        node: The interpreter of JavaScript.
        folder: Has `node_modules` and `exchange.mjs`.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    tokens: list[dict[str, object]] = []
    for algorithm, name in ISSUED:
        keys = [SigningKey.generate("k1", algorithm)]
        profile = TokenProfile(issuer=ISSUER, audience=AUDIENCE, keys=keys)
        token = profile.issue(subject="ann", now=now, lifetime=timedelta(hours=1))
        tokens.append({"token": token, "jwks": profile.jwks(), "algorithm": name})
    question = {
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "now": int(now.timestamp()),
        "tokens": tokens,
        "algorithms": READ,
    }
    answer = json.loads(
        subprocess.run(
            [node, folder / "exchange.mjs"],
            input=json.dumps(question),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
    )
    names = [(each["header"]["alg"], each["claims"]["sub"]) for each in answer["read"]]
    assert names == [(name, "ann") for _, name in ISSUED], names
    for issued in answer["issued"]:
        assert subject_of(issued["token"], issued["jwk"]) == "ann"
    print(f"{len(names)} tokens read by jose, {len(answer['issued'])} of jose read here")


def subject_of(token: str, jwk: dict[str, object]) -> str:
    """Whose token it is, by the issuer's key alone."""

    def find(identity: ExternalIdentity) -> Owner[str]:
        return Owner(identity.subject, frozenset(), identity.subject)

    authenticator = Authenticator(
        MemoryKeyStore(),
        find_owner=lambda _: None,
        issuers=[
            ExternalIssuer(
                Provider.OIDC,
                ISSUER,
                audience=AUDIENCE,
                grants=None,
                keys=PinnedKeySet({"keys": [jwk]}),
            )
        ],
        find_external_owner=find,
    )
    return authenticator.authenticate([f"Bearer {token}"]).owner.id


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
