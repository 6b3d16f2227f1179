"""One process of a deployment whose path to the database may be cut: verifies, revokes its share, writes down when.

Run by `test_lease_partition.py` as `python -m tests.lease.partition_process`, with a JSON object in the first line of
standard input. It prints `ready` once it has verified and `revoked` after its first revocation, goes on until standard
input ends, and then prints what it wrote down. Times are those of the boot clock, which all processes of the machine share.
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

from msk_auth import AsyncAuthenticator, Owner, Problem, StoreUnavailable, local_principal
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore

OWNER: Owner[str] = Owner("owner", frozenset({"run"}), "owner")
ACCEPTED = "accepted"


async def find_owner(owner_id: str) -> Owner[str]:
    return OWNER


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class PartitionProcess:
    def __init__(self, setup: dict[str, Any]) -> None:
        self.own: Sequence[str] = setup["own"]
        self.all: Sequence[str] = setup["all"]
        self.kept: str = setup["kept"]
        self.pause: float = setup["pause"]
        self.revokers: int = setup["revokers"]
        self.chance = Random(setup["seed"])
        self.authenticator = AsyncAuthenticator(
            AsyncSQLAlchemyKeyStore(create_async_engine(setup["url"], pool_timeout=2)),
            find_owner=find_owner,
            lease=timedelta(milliseconds=setup["lease_ms"]),
        )
        self.revoked: list[tuple[str, int, int]] = []
        self.verified: list[tuple[str, int, int, str]] = []
        self.failed_revocations = 0
        self.done = asyncio.Event()

    async def run(self) -> None:
        await self.verify(self.kept)
        print("ready", flush=True)
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        ended.add_done_callback(lambda _: self.done.set())
        mine = iter(self.own)

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
            while not self.done.is_set():
                await self.verify(self.kept)
                await asyncio.sleep(0.005)

        await asyncio.gather(
            *(revoke(turn) for turn in range(self.revokers)),
            *(verify_any() for _ in range(4)),
            verify_the_kept(),
            ended,
        )

    async def verify(self, key: str) -> None:
        began = now()
        try:
            await self.authenticator.authenticate([f"Bearer {key}"])
            outcome = ACCEPTED
        except Problem as problem:
            outcome = problem.code
        self.verified.append((key[4:16], began, now(), outcome))

    async def revoke(self, key_id: str) -> None:
        """Retry until it returns: after an error it is not known whether the key was revoked."""
        principal = local_principal(OWNER, at=datetime.now(UTC), interactive=True)
        began = now()
        while not self.done.is_set():
            try:
                await self.authenticator.revoke_key(principal, key_id)
            except StoreUnavailable:
                self.failed_revocations += 1
            else:
                self.revoked.append((key_id, began, now()))
                if len(self.revoked) == 1:
                    print("revoked", flush=True)
                return


async def main() -> None:
    process = PartitionProcess(json.loads(sys.stdin.readline()))
    await process.run()
    json.dump(
        {
            "revoked": process.revoked,
            "verified": process.verified,
            "failed_revocations": process.failed_revocations,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    asyncio.run(main())
