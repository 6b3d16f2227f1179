"""A reporter who signs: keys made for the test, its list of them, and reports."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from msk_auth import (
    ApiKey,
    AsyncAuthenticator,
    Authenticator,
    Owner,
    local_principal,
)
from msk_auth._async.leaks import AsyncLeakReceiver
from msk_auth._sync.leaks import LeakReceiver
from msk_auth.events import Event
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.testing import FrozenClock

ANN = Owner("ann", frozenset({"tasks:read"}), "Ann")
TYPE = "example_api_key"


class Reporter:
    """A sender that signs reports with keys of P-256."""

    def __init__(self, *identifiers: str) -> None:
        self.keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in identifiers}

    def document(self, **more: str) -> bytes:
        """The list of keys, as GitHub publishes it."""
        listed = {name: pem(key.public_key()) for name, key in self.keys.items()} | more
        entries = [
            {"key_identifier": name, "key": key, "is_current": False}
            for name, key in listed.items()
        ]
        return json.dumps({"public_keys": entries}).encode()

    def sign(self, body: bytes, identifier: str) -> str:
        signature = self.keys[identifier].sign(body, ec.ECDSA(SHA256()))
        return base64.b64encode(signature).decode()


def pem(key: Any) -> str:
    text: bytes = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return text.decode()


def other_kinds() -> dict[str, str]:
    """Public keys that are none on P-256."""
    return {
        "p384": pem(ec.generate_private_key(ec.SECP384R1()).public_key()),
        "rsa": pem(rsa.generate_private_key(65537, 2048).public_key()),
        "ed25519": pem(ed25519.Ed25519PrivateKey.generate().public_key()),
        "broken": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
        "text": "nothing of the kind é",
    }


def report(*matches: dict[str, object]) -> bytes:
    return json.dumps(list(matches)).encode()


def match(token: str, url: object = "https://github.com/o/r/blob/1/.env") -> dict[str, object]:
    return {"token": token, "type": TYPE, "url": url, "source": "Commit"}


class World:
    """A receiver of either kind, called in the same way: each method blocks and returns."""

    def __init__(self, driver: str, now: datetime) -> None:
        self.clock = FrozenClock(now)
        self.events: list[Event] = []
        self.fetches: list[bytes | BaseException] = []
        self.fetched = 0
        self.store = MemoryKeyStore()
        self._runner = asyncio.Runner() if driver == "async" else None
        self.blocking: Authenticator[str] = Authenticator(
            self.store,
            find_owner=lambda _: ANN,
            on_event=self.events.append,
            clock=self.clock,
        )
        self.start: Callable[..., Any] = (
            partial(LeakReceiver().receive, self.blocking, self._fetch)
            if driver == "sync"
            else partial(AsyncLeakReceiver().receive, self._asynchronous(), self._await)
        )

    def _asynchronous(self) -> AsyncAuthenticator[str]:
        async def find_owner(_: str) -> Owner[str]:
            return ANN

        blocking = self.store

        class SameKeys(AsyncMemoryKeyStore):
            """The keys of the blocking store."""

            async def find(self, key_id: str) -> ApiKey | None:
                return blocking.find(key_id)

            async def revoke(self, *args: Any, **options: Any) -> ApiKey | None:
                return blocking.revoke(*args, **options)

        store = SameKeys()
        store._records = blocking._records
        return AsyncAuthenticator(
            store, find_owner=find_owner, on_event=self.events.append, clock=self.clock
        )

    def _fetch(self) -> bytes:
        self.fetched += 1
        answer = self.fetches[0] if len(self.fetches) == 1 else self.fetches.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _await(self) -> bytes:
        # Others come in between.
        await asyncio.sleep(0)
        return self._fetch()

    def create(self) -> tuple[str, str]:
        """The id and the value of a fresh key."""
        created = self.blocking.create_key(
            local_principal(ANN, at=self.clock.now(), interactive=True), name="ci"
        )
        self.events.clear()
        return created.record.id, created.value.reveal()

    def receive(
        self, body: bytes, identifier: str | None, signature: str | None
    ) -> tuple[dict[str, str], ...]:
        answer = self.start(body, key_identifier=identifier, signature=signature)
        labels: tuple[dict[str, str], ...] = (
            answer if self._runner is None else self._runner.run(answer)
        )
        return labels

    def at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Many calls together: on one loop, or in as many threads."""
        if self._runner is not None:

            async def together() -> list[Any]:
                return await asyncio.gather(*(call() for call in calls), return_exceptions=True)

            return self._runner.run(together())
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(calls)) as pool:
            return [future.result() for future in [pool.submit(call) for call in calls]]

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
