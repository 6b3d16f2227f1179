"""Finds keys in bytes: by form, then by checksum.

The checksum makes a false alarm practically impossible, so a key may stand anywhere: in the middle of a word or of a binary
file, and in the UTF-16 that Windows' shells write.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from msk_auth import KeyFormat, KeyMalformed, KeyValue
from msk_auth.core.keys import CHECKSUM_LENGTH, ID_LENGTH, SECRET_LENGTH

CHUNK: Final = 1 << 20
"""How many bytes are searched at once; they fit into the processor's cache."""

# Bytes that begin no code point: continuation bytes of UTF-8 (RFC 3629), and the second bytes and marks of UTF-16.
_NO_COLUMN: Final = bytes([0, 0xFE, 0xFF, *range(0x80, 0xC0)])


@dataclass(frozen=True, slots=True)
class Found:
    """A key, and where its first character stands.

    Attributes:
        key_id: The public part.
        mask: The part that may be shown.
        line: From 1.
        column: From 1, in code points.
    """

    key_id: str
    mask: str
    line: int
    column: int


class Finder:
    """Finds the keys of some prefixes.

    Raises:
        ConfigurationError: A prefix has another form than prefixes have.
    """

    def __init__(self, prefixes: Collection[str]) -> None:
        formats = [KeyFormat(prefix) for prefix in dict.fromkeys(prefixes)]
        self._narrow = [(each, _pattern(each.prefix, b"")) for each in formats]
        self._wide = [(each, _pattern(each.prefix, b"\0")) for each in formats]
        longest = max(len(each.generate().reveal()) for each in formats)
        self._overlap = 2 * longest - 2

    def find(self, chunks: Iterable[bytes]) -> Iterator[Found]:
        """All keys in a stream of bytes, in order."""
        tail = b""
        place = _Place(1, 1)
        for chunk in chunks:
            buffer = tail + chunk
            at = 0
            ahead = place
            for start, key in self._keys(buffer, len(tail)):
                ahead = ahead.after(buffer[at:start])
                at = start
                yield Found(key.id, key.mask, ahead.line, ahead.column)
            # A key may continue in the next chunk.
            kept = max(0, len(buffer) - self._overlap)
            place = place.after(buffer[:kept])
            tail = buffer[kept:]

    def _keys(self, buffer: bytes, seen: int) -> list[tuple[int, KeyValue]]:
        """The keys in the buffer that do not end within its first `seen` bytes: those were found before."""
        found: list[tuple[int, KeyValue]] = []
        # Only UTF-16 has NULs, and searching for one byte is much faster than for a pattern.
        wide = self._wide if b"\0" in buffer else []
        for key_format, pattern in (*self._narrow, *wide):
            for match in pattern.finditer(buffer):
                if match.end() > seen:
                    try:
                        key = key_format.parse(match[0].replace(b"\0", b"").decode("ascii"))
                    except KeyMalformed:
                        continue
                    found.append((match.start(), key))
        return sorted(found, key=lambda each: each[0])


@dataclass(frozen=True, slots=True)
class _Place:
    line: int
    column: int

    def after(self, passed: bytes) -> _Place:
        """The place after these bytes."""
        lines = passed.count(b"\n")
        last = passed[passed.rfind(b"\n") + 1 :]
        columns = len(last.translate(None, _NO_COLUMN))
        return _Place(self.line + lines, columns + (1 if lines else self.column))


def _pattern(prefix: str, between: bytes) -> re.Pattern[bytes]:
    """A key whose characters have these bytes between them."""
    any_character = b"(?:[0-9A-Za-z]" + between + b")"
    # A literal at the start lets the regular expression engine skip quickly.
    literal = between.join(bytes([byte]) for byte in f"{prefix}_".encode("ascii")) + between
    return re.compile(
        literal
        + any_character
        + b"{%d}_" % ID_LENGTH
        + between
        + any_character
        + b"{%d}[0-4]" % SECRET_LENGTH
        + between
        + any_character
        + b"{%d}[0-9A-Za-z]" % (CHECKSUM_LENGTH - 2)
    )
