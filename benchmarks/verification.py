"""What one verification costs in process, against the least work that could do it.

The least work reads the header, takes the id out of the key, looks a digest up in a dictionary, makes the HMAC of the
key and compares the two in constant time. All are measured in turns within one run, so that their ratios hold::

    python -m benchmarks.verification
"""

from __future__ import annotations

import gc
import hmac
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from sqlalchemy import create_engine

from msk_auth import (
    AlgorithmName,
    Authenticator,
    KeyHasher,
    KeyRing,
    KeyStore,
    Owner,
    PepperRing,
    Problem,
    SigningKey,
    SystemClock,
    TokenProfile,
    local_principal,
)
from msk_auth.stores.memory import MemoryKeyStore
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, prepare_sqlite
from msk_auth.stores.sqlalchemy.migrations import upgrade

ROUNDS = 30
CALLS = 400
OWNER = Owner("ada", frozenset({"tasks:read"}), "ada")
PEPPER = b"a pepper of at least 32 bytes...."
ALGORITHMS: tuple[AlgorithmName, ...] = ("HS256", "ES256", "Ed25519", "RS256")

Work = Callable[[], object]


def find_owner(_owner_id: str) -> Owner[str]:
    return OWNER


def authenticator(
    store: KeyStore, *tokens: TokenProfile, leased: bool = False
) -> Authenticator[str]:
    return Authenticator(
        store,
        find_owner=find_owner,
        hasher=KeyHasher(PepperRing({"a": PEPPER}, current="a")),
        tokens=tokens,
        lease=timedelta(seconds=5) if leased else None,
    )


def verify(auth: Authenticator[str], credential: str) -> Work:
    header = [f"Bearer {credential}".encode()]
    return lambda: auth.authenticate(header)


def refuse(auth: Authenticator[str], credential: str) -> Work:
    header = [f"Bearer {credential}".encode()]

    def work() -> None:
        try:
            auth.authenticate(header)
        except Problem:
            return
        raise AssertionError("this credential must be refused")

    return work


def least_work(credential: str) -> Work:
    header = f"Bearer {credential}".encode()
    digests = {credential[4:16]: hmac.digest(PEPPER, credential.encode(), "sha256")}

    def work() -> None:
        key = header.decode().split(" ")[1]
        digest = hmac.digest(PEPPER, key.encode(), "sha256")
        assert hmac.compare_digest(digest, digests[key[4:16]])

    return work


@contextmanager
def sqlite_store() -> Iterator[SQLAlchemyKeyStore]:
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{Path(folder) / 'keys.db'}")
        prepare_sqlite(engine)
        upgrade(engine)
        store = SQLAlchemyKeyStore(engine)
        yield store
        store.close()
        engine.dispose()


def measure(works: dict[str, Work]) -> dict[str, list[float]]:
    """Microseconds of processor time per call, one figure for each round."""
    rounds: dict[str, list[float]] = {name: [] for name in works}
    gc.disable()
    for _ in range(ROUNDS):
        for name, work in works.items():
            began = time.thread_time()
            for _ in range(CALLS):
                work()
            rounds[name].append((time.thread_time() - began) / CALLS * 1e6)
        gc.collect()
    gc.enable()
    return rounds


def main() -> None:
    """Print a table: microseconds per verification and the ratio to the least work."""
    now = SystemClock().now()
    with sqlite_store() as on_disk:
        memory = MemoryKeyStore()
        principal = local_principal(OWNER, at=now)
        key, disk_key = (
            authenticator(store).create_key(principal, name="benchmark").value.reveal()
            for store in (memory, on_disk)
        )
        profiles = {
            name: TokenProfile(
                issuer=name, audience="a", keys=KeyRing([SigningKey.generate("k", name)])
            )
            for name in ALGORITHMS
        }
        tokens = {
            name: profile.issue(subject="ada", now=now, lifetime=timedelta(hours=1))
            for name, profile in profiles.items()
        }
        plain = authenticator(memory, *profiles.values())
        leased = authenticator(memory, *profiles.values(), leased=True)
        wrong = plain.rules.key_format.generate().reveal()
        works = {
            "least work": least_work(key),
            "key, leased": verify(leased, key),
            "key, memory": verify(plain, key),
            "key, SQLite": verify(authenticator(on_disk), disk_key),
            "JWT HS256, leased": verify(leased, tokens["HS256"]),
            **{f"JWT {name}": verify(plain, token) for name, token in tokens.items()},
            "malformed key": refuse(plain, "msk_not_a_key"),
            "wrong checksum": refuse(plain, key[:-1] + ("0" if key[-1] != "0" else "1")),
            "unknown key": refuse(plain, wrong),
        }
        rounds = measure(works)
    least = statistics.median(rounds["least work"])
    print(f"{'':20} {'µs':>8} {'spread':>15} {'ratio':>7}")
    for name, times in rounds.items():
        median = statistics.median(times)
        low, *_, high = statistics.quantiles(times, n=10)
        print(f"{name:20} {median:8.2f} {low:7.2f}–{high:<7.2f} {median / least:7.2f}")


if __name__ == "__main__":
    main()
