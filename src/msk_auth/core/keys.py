"""The format of a key: how one is made, recognised and shown.

::

    msk_<id: 12 base62>_<secret: 32 base62><checksum: 6 base62>

The id is public. The secret carries 190 bits. The checksum is the CRC-32 of everything before it,
so that a typing error, a truncated copy and most garbage are refused without a look-up in the store,
and a scanner can distinguish a real key from a look-alike. It is no protection: it needs no secret.
"""

from __future__ import annotations

import re
import secrets
import string
import zlib
from collections.abc import Sequence
from typing import NoReturn, cast

from .errors import ConfigurationError, CredentialRefused

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""Base62, in the order that gives each character its value."""

ID_LENGTH = 12
SECRET_LENGTH = 32
CHECKSUM_LENGTH = 6

_PREFIX = re.compile(r"[a-z][a-z0-9]{1,15}")


class KeyValue:
    """The value of a key in memory. `str`, `repr` and formatting give the mask, never the value.

    It cannot be pickled or serialized to JSON by accident; only :meth:`reveal` returns the value.

    Attributes:
        id: The public part.
        mask: What may be shown and logged, such as `msk_AAAAAAAAAAAA_…`.
    """

    __slots__ = ("_value", "id", "mask")

    def __init__(self, value: str, *, key_id: str, mask: str) -> None:
        self._value = value
        self.id: str = key_id
        self.mask: str = mask

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
    """Makes keys of one prefix and reads them, and those of older prefixes.

    Args:
        prefix: What the application's keys begin with: 2 to 16 characters, lower-case letters and
            digits, a letter first.
        older_prefixes: What keys began with before. Such keys are still accepted, and no new ones
            are made. Keys with any other prefix are malformed.

    Raises:
        ConfigurationError: A prefix has another form, looks like the beginning of a JWT, or occurs twice.
    """

    __slots__ = ("_claimed", "_pattern", "older_prefixes", "prefix")

    def __init__(self, prefix: str = "msk", *, older_prefixes: Sequence[str] = ()) -> None:
        prefixes = _checked_prefixes(prefix, older_prefixes)
        self.prefix: str = prefix
        self.older_prefixes: tuple[str, ...] = prefixes[1:]
        self._claimed = tuple(f"{each}_" for each in prefixes)
        self._pattern = re.compile(
            f"({'|'.join(prefixes)})_([0-9A-Za-z]{{{ID_LENGTH}}})_[0-9A-Za-z]{{{SECRET_LENGTH}}}[0-4][0-9A-Za-z]{{5}}"
        )

    def __repr__(self) -> str:
        older = f", older_prefixes={self.older_prefixes!r}" if self.older_prefixes else ""
        return f"KeyFormat({self.prefix!r}{older})"

    def generate(self) -> KeyValue:
        """A fresh key from the operating system's random source, without modulo bias."""
        key_id = _random(ID_LENGTH)
        body = f"{self.prefix}_{key_id}_{_random(SECRET_LENGTH)}"
        return KeyValue(body + checksum(body), key_id=key_id, mask=self.mask(key_id))

    def claims(self, token: str) -> bool:
        """True if `token` begins with one of the prefixes, well-formed or not."""
        return token.startswith(self._claimed)

    def parse(self, token: str) -> KeyValue:
        """Read a presented key.

        Raises:
            CredentialRefused: The form or the checksum is wrong.
        """
        match = self._pattern.fullmatch(token)
        # There is one spelling of each checksum: six base62 digits can also spell numbers beyond 32 bits, which no checksum
        # equals.
        if match is None or checksum(token[:-CHECKSUM_LENGTH]) != token[-CHECKSUM_LENGTH:]:
            raise CredentialRefused("key_malformed")
        return KeyValue(token, key_id=match[2], mask=f"{match[1]}_{match[2]}_…")

    def mask(self, key_id: str) -> str:
        """The part of a key that may be shown. Not its last characters: they are a function of the secret.

        It begins with the prefix of new keys, because an id does not contain the prefix of its key.
        """
        return f"{self.prefix}_{key_id}_…"


def checksum(body: str) -> str:
    """The six base62 characters that follow `body`, which is the key up to and including its secret."""
    number = zlib.crc32(body.encode("ascii"))
    digits: list[str] = []
    for _ in range(CHECKSUM_LENGTH):
        number, value = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[value])
    return "".join(reversed(digits))


def _checked_prefixes(prefix: object, older_prefixes: object) -> tuple[str, ...]:
    if isinstance(older_prefixes, str) or not isinstance(older_prefixes, Sequence):
        raise ConfigurationError(
            f"older_prefixes is a list of prefixes. Write older_prefixes=[{older_prefixes!r}]."
        )
    prefixes: list[str] = []
    for each in (prefix, *cast("Sequence[object]", older_prefixes)):
        if not isinstance(each, str) or _PREFIX.fullmatch(each) is None:
            raise ConfigurationError(
                f"The key prefix {each!r} is not valid. Use 2 to 16 characters, lower-case letters and digits,"
                " a letter first, such as 'msk'."
            )
        if each.startswith("eyj"):
            # '{"' is 'eyJ' in base64, by which people and scanners recognize a JWT.
            raise ConfigurationError(
                f"The key prefix {each!r} looks like the beginning of a JWT. Choose one that does not"
                " begin with 'eyj', such as 'msk'."
            )
        if each in prefixes:
            raise ConfigurationError(
                f"The key prefix {each!r} is given twice. Give each prefix once: that of new keys as"
                " `prefix`, the others in `older_prefixes`."
            )
        prefixes.append(each)
    return tuple(prefixes)


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))
