"""The format of a key: how one is made, recognised and shown.

::

    msk_<id: 12 base62>_<secret: 32 base62><checksum: 6 base62>

The id is public. The secret carries 190 bits. The checksum is the CRC-32 of everything before it,
so that a typing error, a truncated copy and most garbage are refused without touching the store,
and a scanner can tell a real key from a look-alike. It protects nothing: anybody can compute it.
"""

from __future__ import annotations

import re
import secrets
import string
import zlib
from typing import NoReturn

from .errors import ConfigurationError, KeyMalformed

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""Base62, in the order that gives each character its value."""

ID_LENGTH = 12
SECRET_LENGTH = 32
CHECKSUM_LENGTH = 6

_PREFIX = re.compile(r"[a-z][a-z0-9]{1,15}")
_VALUE_OF = {character: value for value, character in enumerate(ALPHABET)}


class KeyValue:
    """The value of a key in memory. `str`, `repr` and formatting give the mask, never the value.

    It cannot be pickled or copied into JSON by accident; only :meth:`reveal` hands the value out.

    Attributes:
        id: The public part.
        mask: What may be shown and logged, such as `msk_AAAAAAAAAAAA_…`.
    """

    __slots__ = ("_value", "id", "mask")

    def __init__(self, value: str, *, key_id: str, mask: str) -> None:
        self._value = value
        self.id = key_id
        self.mask = mask

    def reveal(self) -> str:
        """The value itself. Its one proper use is the single response that shows a new key."""
        return self._value

    def __repr__(self) -> str:
        return f"<KeyValue {self.mask}>"

    def __str__(self) -> str:
        return self.mask

    def __format__(self, format_spec: str) -> str:
        return format(self.mask, format_spec)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a key value must not be pickled or copied: it would leave this process's memory"
        )


class KeyFormat:
    """Makes and reads keys of one prefix.

    Args:
        prefix: What the application's keys begin with: 2 to 16 characters, lower-case letters and
            digits, a letter first. Changing it later makes all existing keys malformed.

    Raises:
        ConfigurationError: The prefix has another form.
    """

    __slots__ = ("_pattern", "prefix")

    def __init__(self, prefix: str = "msk") -> None:
        if _PREFIX.fullmatch(prefix) is None:
            raise ConfigurationError(
                f"The key prefix {prefix!r} does not work. Use 2 to 16 characters, lower-case letters and digits,"
                " a letter first, such as 'msk'."
            )
        self.prefix = prefix
        self._pattern = re.compile(
            f"{prefix}_([0-9A-Za-z]{{{ID_LENGTH}}})_[0-9A-Za-z]{{{SECRET_LENGTH}}}([0-4][0-9A-Za-z]{{5}})"
        )

    def __repr__(self) -> str:
        return f"KeyFormat({self.prefix!r})"

    def generate(self) -> KeyValue:
        """A fresh key from the operating system's random source, without modulo bias."""
        key_id = _random(ID_LENGTH)
        body = f"{self.prefix}_{key_id}_{_random(SECRET_LENGTH)}"
        return KeyValue(body + checksum(body), key_id=key_id, mask=self.mask(key_id))

    def claims(self, token: str) -> bool:
        """True if `token` sets out to be a key of this prefix, well-formed or not."""
        return token.startswith(f"{self.prefix}_")

    def parse(self, token: str) -> KeyValue:
        """Read a presented key.

        Raises:
            KeyMalformed: The form or the checksum is wrong.
        """
        match = self._pattern.fullmatch(token)
        if match is None:
            raise KeyMalformed
        # Compared as integers: six base62 digits can spell numbers beyond 32 bits, which no
        # checksum equals.
        if _number(match[2]) != zlib.crc32(token[:-CHECKSUM_LENGTH].encode("ascii")):
            raise KeyMalformed
        return KeyValue(token, key_id=match[1], mask=self.mask(match[1]))

    def mask(self, key_id: str) -> str:
        """What may be shown of a key. Not its last characters: they are a function of the secret."""
        return f"{self.prefix}_{key_id}_…"


def checksum(body: str) -> str:
    """The six base62 characters that follow `body`, which is the key up to and including its secret."""
    number = zlib.crc32(body.encode("ascii"))
    digits: list[str] = []
    for _ in range(CHECKSUM_LENGTH):
        number, value = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[value])
    return "".join(reversed(digits))


def _number(text: str) -> int:
    number = 0
    for character in text:
        number = number * len(ALPHABET) + _VALUE_OF[character]
    return number


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))
