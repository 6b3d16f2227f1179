"""Reports of leaked keys, as GitHub's secret scanning sends them to those who issue keys.

GitHub finds a key in a public place and posts what it found, signed with ECDSA on P-256 over SHA-256 of the body's
bytes. A receiver checks the signature, revokes the keys, tells the application through
:class:`~msk_auth.KeyLeaked`, and answers which of them were real.

The checks, in their order, and each ends the request if it fails:

1. Both headers are there, once each and in form.
2. The key that one of them names is one that GitHub publishes: as fetched within the last day, or fetched now.
   Unknown names cause one fetch in :data:`FETCH_PAUSE` at most, however many come.
3. The signature fits the body, and only now is the body looked at. It is not too long.

A report that comes again finds its keys revoked: all it can do is be answered again. What a key's owner is shown of
the place has no query, no user name and no key in it.

The receivers make no request by themselves: the application hands in a function that fetches
:data:`GITHUB_KEYS_URL`. See "Secret scanning partner program" in GitHub's documentation.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from msk_auth._fork import after_fork_in_child
from msk_auth.authenticator import AsyncAuthenticator, Authenticator

from ._keys import (
    FETCH_PAUSE,
    GITHUB_KEYS_URL,
    KEYS_MAX_AGE,
    MAX_KEYS_DOCUMENT,
    PublishedKeys,
    SignatureHeaders,
)
from ._report import MAX_MATCHES, MAX_REPORT, LeakLabel, labels, read_report

__all__ = [
    "FETCH_PAUSE",
    "GITHUB_KEYS_URL",
    "KEYS_MAX_AGE",
    "MAX_KEYS_DOCUMENT",
    "MAX_MATCHES",
    "MAX_REPORT",
    "AsyncGitHubLeakReceiver",
    "GitHubLeakReceiver",
    "LeakLabel",
]


class GitHubLeakReceiver:
    """Receives reports with an :class:`~msk_auth.Authenticator`. Safe to use from several threads.

    Args:
        authenticator: Revokes.
        fetch_keys: Fetches :data:`GITHUB_KEYS_URL` and gives the body of a 200 answer; raises when there is none. It
            has to bound the time that this takes, and may stop reading after :data:`MAX_KEYS_DOCUMENT` bytes.
    """

    def __init__(
        self, authenticator: Authenticator[Any], *, fetch_keys: Callable[[], bytes]
    ) -> None:
        self._authenticator = authenticator
        self._fetch_keys = fetch_keys
        self._keys = PublishedKeys(authenticator.clock)
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._fetching = threading.Lock()

    def receive(
        self, body: bytes, *, key_identifier: str | None, signature: str | None
    ) -> tuple[LeakLabel, ...]:
        """Revoke what a report names.

        Args:
            body: Exactly as it was sent.
            key_identifier: The header `Github-Public-Key-Identifier`; None if it is not there exactly once.
            signature: The header `Github-Public-Key-Signature`, likewise.

        Returns:
            A label for each match, in their order; matches without a token are left out.

        Raises:
            SignatureInvalid: It is not signed by GitHub.
            SigningKeysUnavailable: That cannot be told right now.
            InputInvalid: It is no report, or too long.
            StoreUnavailable: Whether all keys were revoked is not known; GitHub may send it again.
        """
        presented = SignatureHeaders.read(key_identifier, signature)
        key = self._keys.find(presented.identifier)
        if key is None:
            with self._fetching:
                key = self._keys.find(presented.identifier)
                if key is None and self._keys.begin_fetch():
                    with self._keys.fetching():
                        self._keys.fill(self._fetch_keys())
                    key = self._keys.find(presented.identifier)
        presented.check(key, body)
        matches = read_report(body)
        found = self._authenticator.revoke_leaked([match.leaked() for match in matches])
        return labels(matches, found)


class AsyncGitHubLeakReceiver:
    """Receives reports with an :class:`~msk_auth.AsyncAuthenticator`.

    Args:
        authenticator: Revokes.
        fetch_keys: As for :class:`GitHubLeakReceiver`.
    """

    def __init__(
        self,
        authenticator: AsyncAuthenticator[Any],
        *,
        fetch_keys: Callable[[], Awaitable[bytes]],
    ) -> None:
        self._authenticator = authenticator
        self._fetch_keys = fetch_keys
        self._keys = PublishedKeys(authenticator.clock)
        # A lock belongs to one event loop. Several loops may fetch at once, which costs a fetch.
        self._fetching: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def receive(
        self, body: bytes, *, key_identifier: str | None, signature: str | None
    ) -> tuple[LeakLabel, ...]:
        """As :meth:`GitHubLeakReceiver.receive`."""
        presented = SignatureHeaders.read(key_identifier, signature)
        key = self._keys.find(presented.identifier)
        if key is None:
            async with self._fetching.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                key = self._keys.find(presented.identifier)
                if key is None and self._keys.begin_fetch():
                    with self._keys.fetching():
                        self._keys.fill(await self._fetch_keys())
                    key = self._keys.find(presented.identifier)
        presented.check(key, body)
        matches = read_report(body)
        found = await self._authenticator.revoke_leaked([match.leaked() for match in matches])
        return labels(matches, found)
