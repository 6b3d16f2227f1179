"""A reporter who signs: keys made for the test, its list of them, and reports."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.contract.adapter import make_world

from msk_auth import ApiKey
from msk_auth._async.leaks import AsyncLeakReceiver
from msk_auth._sync.leaks import LeakReceiver

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
    """A receiver of either kind, called in the same way: each method blocks and returns.

    Attributes:
        key: The value of a key that is active.
        keys: The store that the receiver writes to.
    """

    def __init__(self, driver: str) -> None:
        world = make_world()
        self.clock, self.events = world.clock, world.events
        self.key, self._key_id = world.names["key"], world.names["key_id"]
        self._blocking = world.store.blocking
        self.fetches: list[bytes | BaseException] = []
        self.fetched = 0
        self._runner = asyncio.Runner() if driver == "async" else None
        self.keys: Any = self._blocking if driver == "sync" else world.store
        self.start: Callable[..., Any] = (
            partial(LeakReceiver().receive, world.blocking, self._fetch)
            if driver == "sync"
            else partial(AsyncLeakReceiver().receive, world.authenticator, self._await)
        )

    @property
    def record(self) -> ApiKey:
        """What is stored of the key."""
        record = self._blocking.find(self._key_id)
        assert record is not None
        return record

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
