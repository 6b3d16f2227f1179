# Generated from src/msk_auth/_async/leaks.py by tools/generate_sync.py: change that, and run this.
"""Receives reports of leaked keys: `_leak_reports` reads and checks them, an authenticator revokes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from msk_auth._fork import after_fork_in_child
from msk_auth._leak_reports import (
    PublishedKeys,
    check_signature,
    labels,
    read_report,
    read_signature,
)

from . import primitives
from .authenticator import Authenticator


class LeakReceiver:
    """Receives the reports of one route, and keeps the keys that they are signed with."""

    def __init__(self) -> None:
        self._keys = PublishedKeys()
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._fetching = threading.Lock()

    def receive(
        self,
        authenticator: Authenticator[Any],
        fetch_keys: Callable[[], bytes],
        body: bytes,
        *,
        key_identifier: str | None,
        signature: str | None,
    ) -> tuple[dict[str, str], ...]:
        """Revoke the keys of a report.

        Args:
            authenticator: Revokes the keys.
            fetch_keys: Fetches GitHub's keys.
            body: The body, exactly as sent.
            key_identifier: The header `Github-Public-Key-Identifier`; None unless it is present exactly once.
            signature: The header `Github-Public-Key-Signature`, likewise.

        Returns:
            The response to GitHub, to send as JSON: for each match with a token, in the order of the report, the
            `token_hash` (SHA-256 of the match, in hexadecimal), the `token_type` (as sent), and the `label`:
            `true_positive` for a key of this application, in any state, otherwise `false_positive`.

        Raises:
            Forbidden: The body is not signed by GitHub.
            SigningKeysUnavailable: GitHub's keys could not be fetched, so the signature cannot be verified.
            InputInvalid: The body is not a report, or too long.
            StoreUnavailable: The store did not answer; some keys may be revoked. GitHub may send the report again.
        """
        identifier, made = read_signature(key_identifier, signature)
        now = authenticator.clock.monotonic
        key = self._keys.find(identifier, now())
        if key is None:
            with primitives.holding(self._fetching):
                if self._keys.begin_fetch(identifier, now()):
                    with self._keys.fetching():
                        self._keys.fill(fetch_keys())
            key = self._keys.find(identifier, now())
        check_signature(key, made, body)
        matches = read_report(body)
        found = authenticator.revoke_leaked([match.found for match in matches])
        return labels(matches, found)
