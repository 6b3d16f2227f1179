"""One process of a deployment whose path to the database may be cut: verifies, revokes its share, reports each result.

Run by `test_lease_partition.py` as `python -m tests.lease.partition_process`, with a JSON object in the first line of
standard input. It prints a JSON array for each result until standard input ends: `["verified", key id, began, ended, outcome]`,
`["revoked", key id, began, ended]`, or `["failed"]` for a revocation that is retried. After another line of standard input it
verifies one more key, again and again. Times are those of the boot clock, which all processes of the machine share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from sqlalchemy.ext.asyncio import create_async_engine

from msk_auth import AsyncAuthenticator, Owner, local_principal
from msk_auth.errors import Problem, StoreUnavailable
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore

OWNER: Owner[str] = Owner("owner", frozenset({"run"}), "owner")
ACCEPTED = "accepted"


async def find_owner(owner_id: str) -> Owner[str]:
    return OWNER


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def report(*result: str | int) -> None:
    print(json.dumps(result), flush=True)


class PartitionProcess:
    def __init__(self, setup: dict[str, Any]) -> None:
        self.own: Sequence[str] = setup["own"]
        self.all: Sequence[str] = setup["all"]
        self.kept: str = setup["kept"]
        self.pause: float = setup["pause"]
        self.revokers: int = setup["revokers"]
        self.chance = Random(setup["seed"])
        self.authenticator = AsyncAuthenticator(
            AsyncSQLAlchemyKeyStore(create_async_engine(setup["url"])),
            find_owner=find_owner,
            lease=timedelta(milliseconds=setup["lease_ms"]),
        )
        self.uses_kept = asyncio.Event()
        self.done = asyncio.Event()

    async def run(self) -> None:
        # The first report says that it is ready.
        await self.verify(self.all[0])
        mine = iter(self.own)

        async def listen() -> None:
            while await asyncio.to_thread(sys.stdin.readline):
                self.uses_kept.set()
            self.done.set()
            self.uses_kept.set()

        async def revoke(turn: int) -> None:
            # One after the other, so that at every moment some are under way.
            await asyncio.sleep(turn * self.pause / 2)
            for key in mine:
                if self.done.is_set():
                    return
                await self.revoke(key[4:16])
                await asyncio.sleep(self.pause)

        async def verify_any() -> None:
            while not self.done.is_set():
                await self.verify(self.chance.choice(self.all))
                await asyncio.sleep(0.002)

        async def verify_the_kept() -> None:
            # By itself: a lost packet must not keep it from using its lease.
            await self.uses_kept.wait()
            while not self.done.is_set():
                await self.verify(self.kept)
                await asyncio.sleep(0.005)

        await asyncio.gather(
            *(revoke(turn) for turn in range(self.revokers)),
            *(verify_any() for _ in range(4)),
            verify_the_kept(),
            listen(),
        )

    async def verify(self, key: str) -> None:
        began = now()
        try:
            await self.authenticator.authenticate([f"Bearer {key}"])
            outcome = ACCEPTED
        except Problem as problem:
            outcome = problem.code
        report("verified", key[4:16], began, now(), outcome)

    async def revoke(self, key_id: str) -> None:
        """Retry until it returns: after an error it is not known whether the key was revoked."""
        principal = local_principal(OWNER, at=datetime.now(UTC), interactive=True)
        began = now()
        while not self.done.is_set():
            try:
                await self.authenticator.revoke_key(principal, key_id)
            except StoreUnavailable:
                report("failed")
            else:
                report("revoked", key_id, began, now())
                return


async def main() -> None:
    await PartitionProcess(json.loads(sys.stdin.readline())).run()


if __name__ == "__main__":
    asyncio.run(main())
