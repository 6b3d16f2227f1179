"""One process of a deployment under load: verifies keys without pause, revokes its share, and writes down when.

Run by `test_lease_processes.py` as `python -m tests.lease.deployment_process`, with a JSON object on standard input.
Times are those of the machine's boot clock, which all its processes share.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import struct
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

from sqlalchemy.ext.asyncio import create_async_engine

from msk_auth import AsyncAuthenticator, Owner, local_principal
from msk_auth.errors import CredentialRefused
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore

REVOKERS = 12
VERIFIERS = 2
OWNER: Owner[str] = Owner("owner", frozenset({"run"}), "owner")


async def find_owner(owner_id: str) -> Owner[str]:
    return OWNER


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Frontier:
    """How far each process has come in revoking, in a file that all of them map."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def __getitem__(self, process: int) -> int:
        return int(struct.unpack_from("q", self._map, process * 8)[0])

    def __setitem__(self, process: int, index: int) -> None:
        struct.pack_into("q", self._map, process * 8, index)


class DeploymentProcess:
    def __init__(self, setup: dict[str, Any]) -> None:
        self.number: int = setup["number"]
        self.shares: Sequence[Sequence[str]] = setup["shares"]
        self.frontier = Frontier(Path(setup["frontier"]))
        store = AsyncSQLAlchemyKeyStore(create_async_engine(setup["url"]))
        # A busy machine may take longer than an application would wait.
        store.read_seconds = store.write_seconds = 60
        self.authenticator = AsyncAuthenticator(
            store,
            find_owner=find_owner,
            lease=timedelta(milliseconds=setup["lease_ms"]),
        )
        self.chance = Random(self.number)
        self.revoked: list[tuple[str, int]] = []
        self.accepted: list[tuple[str, int]] = []
        self.refused = 0
        self.done = False

    async def run(self) -> None:
        mine = iter(enumerate(self.shares[self.number]))
        # On a busy machine the many that revoke would leave no time to the few that verify.
        verified = asyncio.Semaphore(REVOKERS)

        async def revoke() -> None:
            principal = local_principal(OWNER, at=datetime.now(UTC), interactive=True)
            for index, key in mine:
                await verified.acquire()
                self.frontier[self.number] = index
                key_id = key[4:16]
                await self.authenticator.revoke_key(principal, key_id)
                self.revoked.append((key_id, now()))

        async def verify() -> None:
            while not self.done:
                share = self.chance.randrange(len(self.shares))
                index = self.frontier[share] + self.chance.randint(-REVOKERS, 4)
                key = self.shares[share][min(max(index, 0), len(self.shares[share]) - 1)]
                began = now()
                try:
                    await self.authenticator.authenticate([f"Bearer {key}"])
                except CredentialRefused:
                    self.refused += 1
                else:
                    self.accepted.append((key[4:16], began))
                verified.release()
                await asyncio.sleep(0.001)

        verifiers = [asyncio.create_task(verify()) for _ in range(VERIFIERS)]
        await asyncio.gather(*(revoke() for _ in range(REVOKERS)))
        # The others may still use what they read: look on for longer than a lease.
        await asyncio.sleep(0.3)
        self.done = True
        await asyncio.gather(*verifiers)


async def main() -> None:
    process = DeploymentProcess(json.load(sys.stdin))
    await process.run()
    json.dump(
        {
            "revoked": process.revoked,
            "accepted": process.accepted,
            "refused": process.refused,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    asyncio.run(main())
