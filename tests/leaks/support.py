"""A reporter who signs: keys made for the test, its list of them, and reports."""

from __future__ import annotations

import asyncio
import base64
import json
import operator
from collections.abc import Callable, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.contract.adapter import make_world

from msk_auth import ApiKey
from msk_auth.http._async import routes as async_routes
from msk_auth.http._sync import routes
from msk_auth.http.answers import Answer

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


Labels = list[dict[str, str]]


def receiver_of(authenticator: Any, fetch: Callable[[str], bytes]) -> Callable[..., Labels]:
    """What receives reports with a blocking authenticator: a body, and the values of both headers."""
    handle = routes.leak_route("", fetch).handle

    def receive(body: bytes, identifier: str | None, signature: str | None) -> Labels:
        given = _given(authenticator, operator.call, body, identifier, signature)
        return _labels(handle(routes.Exchange(**given)))

    return receive


def async_receiver_of(authenticator: Any, fetch: Callable[[str], Any]) -> Callable[..., Any]:
    """The same, awaited."""
    handle = async_routes.leak_route("", fetch).handle

    async def call(function: Callable[..., Any], *args: object) -> Any:
        return await function(*args)

    async def receive(body: bytes, identifier: str | None, signature: str | None) -> Labels:
        given = _given(authenticator, call, body, identifier, signature)
        return _labels(await handle(async_routes.AsyncExchange(**given)))

    return receive


def _given(
    authenticator: Any, call: Any, body: bytes, identifier: str | None, signature: str | None
) -> dict[str, Any]:
    headers = {
        "github-public-key-identifier": identifier,
        "github-public-key-signature": signature,
    }
    of_no_use = dict.fromkeys(("query", "path", "key_id", "admit", "read_body"))
    own = {"authenticator": authenticator, "header": headers.get, "call": call, "body": body}
    return of_no_use | own


def _labels(answer: Answer) -> Labels:
    assert answer.status == 200
    labels: Labels = json.loads(answer.body)
    return labels


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
            receiver_of(world.blocking, self._fetch)
            if driver == "sync"
            else async_receiver_of(world.authenticator, self._await)
        )

    @property
    def record(self) -> ApiKey:
        """What is stored of the key."""
        record = self._blocking.find(self._key_id)
        assert record is not None
        return record

    def _fetch(self, url: str) -> bytes:
        self.fetched += 1
        answer = self.fetches[0] if len(self.fetches) == 1 else self.fetches.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _await(self, url: str) -> bytes:
        # Others come in between.
        await asyncio.sleep(0)
        return self._fetch(url)

    def receive(self, body: bytes, identifier: str | None, signature: str | None) -> Labels:
        answer = self.start(body, identifier, signature)
        labels: Labels = answer if self._runner is None else self._runner.run(answer)
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
