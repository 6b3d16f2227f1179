"""Reads a report, and writes its response."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast
from urllib.parse import quote, unquote, urlsplit

from msk_auth.core.errors import InputInvalid
from msk_auth.core.events import LeakLocation
from msk_auth.core.model import ApiKey
from msk_auth.core.revocation import LeakedKey
from msk_auth.redaction import redact

MAX_REPORT: Final = 1_048_576
"""How many bytes of a report are read; a match takes about 300."""

MAX_MATCHES: Final = 1000
"""How many matches one report may have."""

_MAX_URL: Final = 500
_MAX_TYPE: Final = 200
_SOURCE: Final = re.compile(r"[A-Za-z][A-Za-z_]{0,39}")
_MASK: Final = "***"


@dataclass(frozen=True, slots=True)
class LeakLabel:
    """The response to GitHub for one match.

    Attributes:
        token_hash: SHA-256 of the match, in hexadecimal: no answer holds a key.
        token_type: GitHub's name for this kind of key, as it was sent.
        label: Whether the match is a key of this application, in any state.
    """

    token_hash: str
    token_type: str
    label: Literal["true_positive", "false_positive"]

    def document(self) -> dict[str, str]:
        """As JSON."""
        return {
            "token_hash": self.token_hash,
            "token_type": self.token_type,
            "label": self.label,
        }


@dataclass(frozen=True, slots=True)
class Match:
    """A key that was found in one place."""

    token: str = field(repr=False)
    token_type: str
    location: LeakLocation

    def leaked(self) -> LeakedKey:
        """The argument for the authenticator."""
        return LeakedKey(self.token, self.location)

    def label(self, record: ApiKey | None) -> LeakLabel:
        """The response for this match."""
        # JSON can spell lone surrogates. Such text is hashed too, and matches no key.
        token_hash = hashlib.sha256(self.token.encode(errors="surrogatepass")).hexdigest()
        return LeakLabel(
            token_hash, self.token_type, "false_positive" if record is None else "true_positive"
        )


def read_report(body: bytes) -> tuple[Match, ...]:
    """Read `[{"token": …, "type": …, "url": …, "source": …}, …]`.

    A match without a token is skipped, so that the others are revoked. Unknown members are ignored, so that GitHub may
    add some.

    Raises:
        InputInvalid: The body is not a JSON list, or longer than :data:`MAX_REPORT` or :data:`MAX_MATCHES`.
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
    return Match(
        token=token,
        token_type=token_type[:_MAX_TYPE] if isinstance(token_type, str) else "",
        location=LeakLocation(
            "github",
            cast("str", source).lower() if known else "unknown",
            trimmed_url(url, token) if isinstance(url, str) else None,
        ),
    )


def trimmed_url(url: str, token: str) -> str | None:
    """The place, without what could be a secret: user name, query, fragment, and keys in the path.

    Args:
        url: As it was reported.
        token: The key that was found there, which the result must not contain.

    Returns:
        At most 500 characters, or None if it is not an HTTP address.
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


def labels(matches: Sequence[Match], records: Sequence[ApiKey | None]) -> tuple[LeakLabel, ...]:
    """The responses for all matches, in their order."""
    return tuple(match.label(record) for match, record in zip(matches, records, strict=True))
