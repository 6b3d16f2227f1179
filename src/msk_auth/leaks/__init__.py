"""Reports of leaked keys, as GitHub's secret scanning sends them to those who issue keys.

GitHub finds a key in a public place and posts what it found, signed with ECDSA on P-256 over SHA-256 of the body's
bytes. A receiver verifies the signature, revokes the keys, notifies the application through :class:`~msk_auth.events.KeyLeaked`,
and answers which of them were real.

One rule: a report is read only after its signature was verified. The checks, in this order; a failed one ends the request:

1. Both headers are present, once each and well-formed.
2. The key that they name is one that GitHub publishes, by a list that was fetched within the last day or is fetched now.
   Unknown names cause at most one fetch in :data:`FETCH_PAUSE`.
3. The signature fits the body.
4. The body is not too long, and has the form of a report.

A report that arrives again finds its keys revoked, and gets an answer like the first one. What the key's owner sees of the
location has no query, no user name and no key in it.

A receiver makes no request by itself: the application passes a function that fetches :data:`GITHUB_KEYS_URL`. See "Secret
scanning partner program" in GitHub's documentation.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from msk_auth._async.authenticator import AsyncAuthenticator
from msk_auth._fork import after_fork_in_child
from msk_auth._sync.authenticator import Authenticator

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
        fetch_keys: Fetches :data:`GITHUB_KEYS_URL` and returns the body of a 200 response; raises on any other response.
            It has to bound its time, and may stop reading after :data:`MAX_KEYS_DOCUMENT` bytes.
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
            key_identifier: The header `Github-Public-Key-Identifier`; None unless it is present exactly once.
            signature: The header `Github-Public-Key-Signature`, likewise.

        Returns:
            A label for each match that has a token, in the order of the report.

        Raises:
            SignatureInvalid: The body is not signed by GitHub.
            SigningKeysUnavailable: GitHub's keys could not be fetched, so the signature cannot be verified.
            InputInvalid: The body is no report, or too long.
            StoreUnavailable: The store did not answer; some keys may be revoked. GitHub may send the report again.
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
        fetch_keys: Fetches :data:`GITHUB_KEYS_URL` and returns the body of a 200 response; raises on any other response.
            It has to bound its time, and may stop reading after :data:`MAX_KEYS_DOCUMENT` bytes.
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
        # A lock belongs to one event loop. Several loops may each fetch the keys, which does no harm.
        self._fetching: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def receive(
        self, body: bytes, *, key_identifier: str | None, signature: str | None
    ) -> tuple[LeakLabel, ...]:
        """Revoke what a report names.

        Args:
            body: Exactly as it was sent.
            key_identifier: The header `Github-Public-Key-Identifier`; None unless it is present exactly once.
            signature: The header `Github-Public-Key-Signature`, likewise.

        Returns:
            A label for each match that has a token, in the order of the report.

        Raises:
            SignatureInvalid: The body is not signed by GitHub.
            SigningKeysUnavailable: GitHub's keys could not be fetched, so the signature cannot be verified.
            InputInvalid: The body is no report, or too long.
            StoreUnavailable: The store did not answer; some keys may be revoked. GitHub may send the report again.
        """
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
