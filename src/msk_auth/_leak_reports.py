"""Reads and checks reports of leaked keys from GitHub's secret scanning.

GitHub finds keys in public places and posts a report, signed with ECDSA on P-256 over SHA-256 of the body's
bytes. A receiver verifies the signature, revokes the keys, notifies the application through :class:`~msk_auth.events.KeyEvent`,
and answers which of the matches were keys.

One rule: a report is read only after its signature was verified. The checks in order; a failed check ends the request:

1. Both headers are present, once each and well-formed.
2. GitHub publishes the named signing key, by a list that was fetched within the last day or is fetched now.
   Unknown names cause at most one fetch in two minutes.
3. The signature matches the body.
4. The body has at most 1 MiB and 1,000 matches, and the format of a report.

A repeated report finds its keys revoked, and gets the same answer. The location that the key's owner sees contains no query, no
user name and no key.

The library makes no requests: the application passes a function that fetches :data:`GITHUB_KEYS_URL`. See "Secret
scanning partner program" in GitHub's documentation.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import re
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import quote, unquote, urlsplit

from msk_auth._fork import after_fork_in_child
from msk_auth.core.errors import Forbidden, InputInvalid, SigningKeysUnavailable
from msk_auth.core.events import LeakedKey, LeakLocation
from msk_auth.core.model import ApiKey
from msk_auth.core.strict_json import read_object
from msk_auth.redaction import redact

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

MAX_REPORT: Final = 1_048_576
"""The maximum size of a report, in bytes; a match takes about 300."""

MAX_MATCHES: Final = 1000
"""The maximum number of matches in a report."""

_MAX_URL: Final = 500
_MAX_TYPE: Final = 200
_SOURCE: Final = re.compile(r"[A-Za-z][A-Za-z_]{0,39}")
_MASK: Final = "***"


class Match(NamedTuple):
    """A key that was found in one place, and its type in the reporter's words."""

    found: LeakedKey
    token_type: str


def read_report(body: bytes) -> tuple[Match, ...]:
    """Read `[{"token": …, "type": …, "url": …, "source": …}, …]`.

    A match without a token is skipped, so that the others are revoked. Unknown members are ignored, because GitHub may
    add members.

    Raises:
        InputInvalid: The body is not a JSON list, or longer than `MAX_REPORT` or `MAX_MATCHES`.
    """
    if len(body) > MAX_REPORT:
        raise InputInvalid.of("", f"The report is too long. Send at most {MAX_REPORT} bytes.")
    try:
        value: Any = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise InputInvalid.of("", "The body is not valid JSON.") from None
    if not isinstance(value, list):
        raise InputInvalid.of("", "Send a JSON list.")
    entries = cast("list[object]", value)
    if len(entries) > MAX_MATCHES:
        raise InputInvalid.of("", f"The report has too many matches. Send at most {MAX_MATCHES}.")
    objects = [cast("dict[str, object]", entry) for entry in entries if isinstance(entry, dict)]
    return tuple(
        _match(token, entry)
        for entry in objects
        if isinstance(token := entry.get("token"), str) and token
    )


def _match(token: str, entry: dict[str, object]) -> Match:
    token_type, url, source = entry.get("type"), entry.get("url"), entry.get("source")
    known = isinstance(source, str) and _SOURCE.fullmatch(source) is not None
    location = LeakLocation(
        "github",
        cast("str", source).lower() if known else "unknown",
        trimmed_url(url, token) if isinstance(url, str) else None,
    )
    return Match(
        LeakedKey(token, location),
        token_type[:_MAX_TYPE] if isinstance(token_type, str) else "",
    )


def trimmed_url(url: str, token: str) -> str | None:
    """The address without possible secrets: user name, query, fragment, and keys in the path.

    Args:
        url: The reported address.
        token: The found key, which the result must not contain.

    Returns:
        At most 500 characters, or None if `url` is not an HTTP address.
    """
    if not url.isascii() or not url.isprintable():
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in {"http", "https"} or not host:
        return None
    path = redact(unquote(parts.path).replace(token, _MASK))
    path = quote(path.replace("…", _MASK), safe="/*")
    place = f"{parts.scheme}://{host}{'' if port is None else f':{port}'}{path}"
    return place[:_MAX_URL]


def labels(
    matches: Sequence[Match], records: Sequence[ApiKey | None]
) -> tuple[dict[str, str], ...]:
    """The answers for all matches, in order, without keys.

    Returns:
        For each match the `token_hash` (SHA-256 of the match, in hexadecimal), the `token_type` (as sent), and the `label`:
        `true_positive` for a key of this application, in any state, otherwise `false_positive`.
    """
    return tuple(
        {
            # JSON can contain lone surrogates. Such text is hashed too, and matches no key.
            "token_hash": hashlib.sha256(found.key.encode(errors="surrogatepass")).hexdigest(),
            "token_type": token_type,
            "label": "false_positive" if record is None else "true_positive",
        }
        for (found, token_type), record in zip(matches, records, strict=True)
    )


GITHUB_KEYS_URL: Final = "https://api.github.com/meta/public_keys/secret_scanning"
"""The address of GitHub's public keys for signatures of reports."""

KEYS_MAX_AGE: Final = 86_400.0
"""The seconds for which fetched keys are used, so that a key that GitHub withdraws stops working."""

FETCH_PAUSE: Final = 120.0
"""The minimum number of seconds between two fetches: half of GitHub's limit for an address (60 an hour)."""

MAX_KEYS_DOCUMENT: Final = 262_144
"""The maximum size of GitHub's list of keys, in bytes."""

_MAX_KEYS: Final = 100
_MAX_SIGNATURE: Final = 200
_IDENTIFIER: Final = re.compile(r"[0-9A-Za-z._-]{1,128}")

_log = logging.getLogger("msk_auth")


def read_signature(key_identifier: str | None, signature: str | None) -> tuple[str, bytes]:
    """The headers of a report: the name of its key, and the signature (ECDSA, as ASN.1 in DER; RFC 3279, section 2.2.3).

    Raises:
        Forbidden: A header is missing or malformed.
    """
    if key_identifier is None or _IDENTIFIER.fullmatch(key_identifier) is None:
        raise Forbidden("signature_invalid")
    if signature is None or len(signature) > _MAX_SIGNATURE:
        raise Forbidden("signature_invalid")
    try:
        return key_identifier, base64.b64decode(signature, validate=True)
    except ValueError:
        raise Forbidden("signature_invalid") from None


def check_signature(key: EllipticCurvePublicKey | None, signature: bytes, body: bytes) -> None:
    """Verify the signature of a report with a key.

    Raises:
        Forbidden: The signature is wrong, or the key does not exist.
    """
    if key is None:
        raise Forbidden("signature_invalid")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        key.verify(signature, body, ECDSA(SHA256()))
    except InvalidSignature:
        raise Forbidden("signature_invalid") from None


class PublishedKeys:
    """The keys of the last fetch.

    Attributes:
        lock: The caller must hold it from :meth:`begin_fetch` to the end of the fetch.
    """

    def __init__(self) -> None:
        self._keys: dict[str, EllipticCurvePublicKey] = {}
        self._fetched_at = self._tried_at = -math.inf
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self.lock = threading.Lock()

    def find(self, identifier: str, now: float) -> EllipticCurvePublicKey | None:
        """The key of this name, if it was fetched within the last day."""
        is_fresh = now - self._fetched_at < KEYS_MAX_AGE
        return self._keys.get(identifier) if is_fresh else None

    def begin_fetch(self, identifier: str, now: float) -> bool:
        """True if the keys must be fetched now for this name, False if they were just fetched.

        Raises:
            SigningKeysUnavailable: Fetching just failed.
        """
        if self.find(identifier, now) is not None:
            return False
        pause = self._tried_at + FETCH_PAUSE - now
        if pause > 0 and self._fetched_at != self._tried_at:
            raise SigningKeysUnavailable(math.ceil(pause))
        if pause <= 0:
            self._tried_at = now
        return pause <= 0

    @contextmanager
    def fetching(self) -> Generator[None]:
        """The context of a fetch and :meth:`fill`.

        Raises:
            SigningKeysUnavailable: For any error.
        """
        try:
            yield
        except Exception as error:
            _log.warning(
                "could not fetch the keys that reports of leaks are signed with: %r", error
            )
            raise SigningKeysUnavailable(math.ceil(FETCH_PAUSE)) from error
        except BaseException:
            # The client disconnected, which cancelled the fetch. The next one may succeed.
            self._tried_at = -math.inf
            raise

    def fill(self, document: bytes) -> None:
        """Read a fetched document and use its keys.

        Raises:
            ValueError: The document is not a list of keys. The previous keys are kept.
        """
        self._keys = read_keys(document)
        self._fetched_at = self._tried_at


def read_keys(document: bytes) -> dict[str, EllipticCurvePublicKey]:
    """Read `{"public_keys": [{"key_identifier": …, "key": PEM}]}`. Keys of other kinds are ignored.

    Raises:
        ValueError: The document is malformed, or has no key on P-256.
    """
    if len(document) > MAX_KEYS_DOCUMENT:
        raise ValueError("the list of keys is too long")
    listed = read_object(document).get("public_keys")
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
