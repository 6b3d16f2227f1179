"""The format of a key, and the digest that the store keeps.

::

    msk_<id: 12 base62>_<secret: 32 base62><checksum: 6 base62>

The id is public. The secret has 190 bits. The checksum is the CRC-32 of everything before it,
so that a typing error, a truncated copy and most garbage are refused without a look-up in the store,
and a scanner can distinguish a real key from a look-alike. The checksum protects nothing: it needs no secret.

The store keeps a digest. An encoded digest names its scheme, so that schemes and peppers can change while old digests still
verify::

    sha256:<64 hex>                       no pepper configured
    hmac-sha256:<pepper id>:<64 hex>      with a pepper ring
    $argon2id$…                           imported keys of low entropy (`msk_auth.argon2`)

A slow hash, as for passwords, protects guessable secrets. A
key's secret is 190 random bits; no attacker can try 2^190 candidates, at any cost per candidate, so a
slow hash would only cost the server 100 ms on each request (OWASP ASVS 5.0, 6.5.2, requires it
only below 112 bits). The pepper protects against an attacker who can write to the database and plants
the digest of their own key.

The digest covers the whole key, including the id: a digest copied to another row verifies nothing there.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn, Protocol

from .errors import ConfigurationError, CredentialRefused
from .weak_secrets import check_secret

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
"""Base62, in the order that gives each character its value."""

ID_LENGTH = 12
SECRET_LENGTH = 32
CHECKSUM_LENGTH = 6

_PREFIX = re.compile(r"[a-z][a-z0-9]{1,15}")


class KeyValue:
    """The value of a key in memory. `str`, `repr` and formatting give the mask, never the value.

    The object cannot be pickled or serialized to JSON by accident; only :meth:`reveal` returns the value.

    Attributes:
        id: The public part.
        mask: The text for lists and logs, such as `msk_AAAAAAAAAAAA_…`.
    """

    __slots__ = ("_value", "id", "mask")

    def __init__(self, value: str, *, key_id: str, mask: str) -> None:
        self._value = value
        self.id: str = key_id
        self.mask: str = mask

    def reveal(self) -> str:
        """The value itself, only for the response that shows a new key."""
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
    """Makes keys with a prefix, and reads keys with this and older prefixes.

    Args:
        prefix: The prefix of new keys: 2 to 16 characters, lower-case letters and
            digits, a letter first.
        older_prefixes: Prefixes of older keys, which are still accepted. Keys with any other
            prefix are malformed.

    Raises:
        ConfigurationError: A prefix is malformed, looks like the beginning of a JWT, or occurs twice.
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
        """A new key from the operating system's random source, without modulo bias."""
        key_id = _random(ID_LENGTH)
        body = f"{self.prefix}_{key_id}_{_random(SECRET_LENGTH)}"
        return KeyValue(body + checksum(body), key_id=key_id, mask=self.mask(key_id))

    def claims(self, token: str) -> bool:
        """True if `token` begins with one of the prefixes, well-formed or not."""
        return token.startswith(self._claimed)

    def parse(self, token: str) -> KeyValue:
        """Read a presented key.

        Raises:
            CredentialRefused: The format or the checksum is wrong.
        """
        match = self._pattern.fullmatch(token)
        # Each checksum has one spelling: six base62 digits can also spell numbers beyond 32 bits, which no checksum
        # equals.
        if match is None or checksum(token[:-CHECKSUM_LENGTH]) != token[-CHECKSUM_LENGTH:]:
            raise CredentialRefused("key_malformed")
        return KeyValue(token, key_id=match[2], mask=f"{match[1]}_{match[2]}_…")

    def mask(self, key_id: str) -> str:
        """The public part of a key, without its last characters, which are a function of the secret.

        The mask begins with the prefix of new keys, because an id does not contain the prefix of its key.
        """
        return f"{self.prefix}_{key_id}_…"


def checksum(body: str) -> str:
    """The six base62 characters that follow `body`, which is the key up to and including its secret."""
    number, digits = zlib.crc32(body.encode("ascii")), ""
    for _ in range(CHECKSUM_LENGTH):
        digits = ALPHABET[number % 62] + digits
        number //= 62
    return digits


def _checked_prefixes(prefix: str, older_prefixes: Sequence[str]) -> tuple[str, ...]:
    prefixes: list[str] = []
    for each in (prefix, *older_prefixes):
        if _PREFIX.fullmatch(each) is None:
            raise ConfigurationError(
                f"The key prefix {each!r} is not valid. Use 2 to 16 characters, lower-case letters and digits,"
                " a letter first, such as 'msk'."
            )
        if each.startswith("eyj"):
            # '{"' is 'eyJ' in base64: people and scanners recognize a JWT by this prefix.
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


_DOMAIN = b"msk_auth/api-key/v1\x00"
_PEPPER_ID = re.compile(r"[0-9A-Za-z._-]{1,32}")
# Used for hashing in place of a pepper that is not in the ring; the resulting digest is never accepted.
_NO_PEPPER = bytes(32)


class PepperRing:
    """Secrets of the application that are part of every digest, each with an id.

    To rotate: add a new pepper, make it current, and keep the old peppers until no digest names them
    (digests move to the current pepper when their keys are used).

    Args:
        peppers: Maps ids (1 to 32 of `0-9A-Za-z._-`) to 32 to 127 random bytes; published examples,
            patterns and public keys are refused.
        current: The id used for new digests.

    Raises:
        ConfigurationError: A pepper is too weak, an id is malformed, or `current` is not in the
            ring.
    """

    __slots__ = ("_peppers", "current")

    def __init__(self, peppers: Mapping[str, bytes], *, current: str) -> None:
        for pepper_id, pepper in peppers.items():
            if _PEPPER_ID.fullmatch(pepper_id) is None:
                raise ConfigurationError(
                    f"The pepper id {pepper_id!r} must be 1 to 32 of 0-9A-Za-z._-"
                )
            check_secret(f"pepper {pepper_id!r}", pepper)
        if current not in peppers:
            raise ConfigurationError(
                f"The current pepper {current!r} is not in the ring: {sorted(peppers)}."
            )
        self._peppers = dict(peppers)
        self.current: str = current

    def __repr__(self) -> str:
        return f"<PepperRing {sorted(self._peppers)} current={self.current!r}>"

    def get(self, pepper_id: str) -> bytes | None:
        """The pepper with this id, or None if it was retired."""
        return self._peppers.get(pepper_id)

    def __getitem__(self, pepper_id: str) -> bytes:
        return self._peppers[pepper_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._peppers)


class SlowDigest(Protocol):
    """A deliberately slow scheme for imported keys, verified in a thread. See `msk_auth.argon2`.

    A client that presents the id of such a key learns from the response time that the key exists. Hiding this would make
    every unknown id as expensive, and any client could then exhaust the server.
    """

    def recognises(self, encoded: str) -> bool:
        """True if `encoded` is a digest of this scheme."""
        ...

    def verify(self, key: str, encoded: str) -> bool:
        """True if `encoded` is the digest of `key`."""
        ...


class KeyHasher:
    """Makes and compares digests.

    Args:
        peppers: With a ring, new digests are HMAC-SHA256 under its current pepper; without a ring,
            SHA-256.
        slow: A scheme for imported keys, if any.
        accept_unpeppered: True accepts plain SHA-256 digests although there is a ring, so that existing keys move to
            the pepper when they are used. Set it to False afterwards: a planted SHA-256 digest then verifies no key.

    Attributes:
        peppers: The ring; None without one.
        decoy: A digest that no key has, verified in place of the digest of an unknown key.
    """

    __slots__ = ("_accepted", "_current", "_hmac_keys", "_slow", "decoy", "peppers")

    def __init__(
        self,
        peppers: PepperRing | None = None,
        *,
        slow: SlowDigest | None = None,
        accept_unpeppered: bool = True,
    ) -> None:
        self.peppers: PepperRing | None = peppers
        self._slow = slow
        # By scheme: the part of a digest before its last colon.
        self._current = "sha256"
        self._hmac_keys: dict[str, bytes] = {}
        if peppers is not None:
            self._current = f"hmac-sha256:{peppers.current}"
            self._hmac_keys = {f"hmac-sha256:{each}": _hmac_key(peppers[each]) for each in peppers}
        self._accepted = set(self._hmac_keys)
        if accept_unpeppered or peppers is None:
            self._accepted.add("sha256")
        # A digest that no key has, of the current scheme: verifying it takes as long as verifying a wrong secret.
        self.decoy: str = self.digest("")

    def digest(self, key: str) -> str:
        """The encoded digest of a whole key, under the current scheme."""
        pepper = self._hmac_keys.get(self._current)
        return f"{self._current}:{_sha256(key) if pepper is None else _hmac(pepper, key)}"

    def verify(self, key: str, encoded: str) -> bool:
        """True if `encoded` is the digest of `key`, in constant time; unknown schemes verify nothing."""
        if self._slow is not None and self._slow.recognises(encoded):
            return self._slow.verify(key, encoded)
        scheme, _, expected = encoded.rpartition(":")
        computed = _sha256(key)
        if self.peppers is not None:
            # Both hashes for every record, even with a retired pepper or an unknown scheme: the response time must not
            # reveal that a record has another scheme than the decoy.
            peppered = _hmac(self._hmac_keys.get(scheme, _NO_PEPPER), key)
            if scheme != "sha256":
                computed = peppered
        # Bytes, because compare_digest refuses text beyond ASCII, and the stored text is arbitrary.
        matches = hmac.compare_digest(computed.encode(), expected.encode(errors="replace"))
        return matches and scheme in self._accepted

    def is_slow(self, encoded: str) -> bool:
        """True if verifying this digest takes so long that it must not run on an event loop."""
        return self._slow is not None and self._slow.recognises(encoded)

    def needs_rehash(self, encoded: str) -> bool:
        """True if a verified digest should be replaced by :meth:`digest` of the same key.

        Slow digests stay: their keys may have too little entropy for a fast digest.
        """
        return encoded.rpartition(":")[0] != self._current and not self.is_slow(encoded)


def _sha256(key: str) -> str:
    return hashlib.sha256(_DOMAIN + key.encode()).hexdigest()


def _hmac_key(pepper: bytes) -> bytes:
    # HMAC would hash a long key each time (RFC 2104, section 2): a record with a long pepper would take longer.
    return pepper if len(pepper) <= 64 else hashlib.sha256(pepper).digest()


def _hmac(pepper: bytes, key: str) -> str:
    return hmac.digest(pepper, _DOMAIN + key.encode(), "sha256").hex()
