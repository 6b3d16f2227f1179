"""The reporter's public keys: fetched when needed, cached for a day, and fetched at a bounded rate."""

from __future__ import annotations

import base64
import binascii
import json
import logging
import math
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from msk_auth.clock import Clock
from msk_auth.core.errors import SignatureInvalid, SigningKeysUnavailable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

GITHUB_KEYS_URL: Final = "https://api.github.com/meta/public_keys/secret_scanning"
"""Where GitHub publishes the keys that it signs reports with."""

KEYS_MAX_AGE: Final = 86_400.0
"""How many seconds fetched keys are used, so that a key that GitHub withdraws stops working here."""

FETCH_PAUSE: Final = 120.0
"""The least number of seconds between two fetches: half the rate that GitHub allows an address (60 an hour)."""

MAX_KEYS_DOCUMENT: Final = 262_144
"""How many bytes of GitHub's list of keys are read."""

_MAX_KEYS: Final = 100
_MAX_SIGNATURE: Final = 200
_IDENTIFIER: Final = re.compile(r"[0-9A-Za-z._-]{1,128}")

_log = logging.getLogger("msk_auth")


@dataclass(frozen=True, slots=True)
class SignatureHeaders:
    """The two headers of a report: the name of its key, and the signature.

    Attributes:
        identifier: The key's name.
        signature: ECDSA, as ASN.1 in DER (RFC 3279, section 2.2.3).
    """

    identifier: str
    signature: bytes = field(repr=False)

    @classmethod
    def read(cls, key_identifier: str | None, signature: str | None) -> SignatureHeaders:
        """Read the two headers.

        Raises:
            SignatureInvalid: One is missing or has another form.
        """
        if key_identifier is None or _IDENTIFIER.fullmatch(key_identifier) is None:
            raise SignatureInvalid
        if signature is None or len(signature) > _MAX_SIGNATURE:
            raise SignatureInvalid
        try:
            return cls(key_identifier, base64.b64decode(signature, validate=True))
        except (binascii.Error, ValueError):
            raise SignatureInvalid from None

    def check(self, key: EllipticCurvePublicKey | None, body: bytes) -> None:
        """Verify the signature of these bytes with a key.

        Raises:
            SignatureInvalid: The signature is wrong, or there is no such key.
        """
        if key is None:
            raise SignatureInvalid
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            key.verify(self.signature, body, ECDSA(SHA256()))
        except InvalidSignature:
            raise SignatureInvalid from None


class PublishedKeys:
    """The keys of the last fetch.

    The caller holds a lock from :meth:`begin_fetch` to the end of the fetch.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: dict[str, EllipticCurvePublicKey] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._failed = False

    def find(self, identifier: str) -> EllipticCurvePublicKey | None:
        """The key of this name, if it was fetched within the last day."""
        if self._fetched_at is None or self._clock.monotonic() - self._fetched_at >= KEYS_MAX_AGE:
            return None
        return self._keys.get(identifier)

    def begin_fetch(self) -> bool:
        """True if the keys have to be fetched now, False if they were fetched a moment ago.

        Raises:
            SigningKeysUnavailable: Fetching failed a moment ago.
        """
        now = self._clock.monotonic()
        if self._tried_at is not None and now - self._tried_at < FETCH_PAUSE:
            if self._failed:
                raise SigningKeysUnavailable(math.ceil(self._tried_at + FETCH_PAUSE - now))
            return False
        self._tried_at = now
        return True

    @contextmanager
    def fetching(self) -> Generator[None]:
        """Around a fetch and :meth:`fill`.

        Raises:
            SigningKeysUnavailable: For any error.
        """
        self._failed = True
        try:
            yield
        except Exception as error:
            _log.warning(
                "could not fetch the keys that reports of leaks are signed with: %r", error
            )
            raise SigningKeysUnavailable(math.ceil(FETCH_PAUSE)) from error
        except BaseException:
            # The client disconnected, which cancelled the fetch. The next one may succeed.
            self._tried_at = None
            raise
        self._failed = False

    def fill(self, document: bytes) -> None:
        """Read a fetched document and use its keys.

        Raises:
            ValueError: It is not a list of keys. The previous keys are kept.
        """
        self._keys = read_keys(document)
        self._fetched_at = self._tried_at


def read_keys(document: bytes) -> dict[str, EllipticCurvePublicKey]:
    """Read `{"public_keys": [{"key_identifier": …, "key": PEM}]}`. Keys of other kinds are left out.

    Raises:
        ValueError: It has another form, or no key on P-256.
    """
    if len(document) > MAX_KEYS_DOCUMENT:
        raise ValueError("the list of keys is too long")
    try:
        value: Any = json.loads(document)
    except RecursionError:
        raise ValueError("the list of keys is nested too deeply") from None
    listed = cast("dict[str, object]", value).get("public_keys") if isinstance(value, dict) else 0
    if not isinstance(listed, list):
        raise ValueError("there is no list of keys")  # noqa: TRY004 - what was read, not what was passed
    keys: dict[str, EllipticCurvePublicKey] = {}
    for entry in cast("list[object]", listed)[:_MAX_KEYS]:
        match entry:
            case {"key_identifier": str(identifier), "key": str(pem)}:
                key = _read_key(pem)
                if key is not None:
                    keys[identifier] = key
            case _:
                continue
    if not keys:
        raise ValueError("there is no key in the list")
    return keys


def _read_key(pem: str) -> EllipticCurvePublicKey | None:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem.encode("ascii"))
    except (ValueError, UnsupportedAlgorithm):
        return None
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return key
    return None
