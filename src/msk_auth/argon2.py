"""Argon2id digests, for imported keys with guessable secrets.

Keys of this library have 190 random bits and need no slow digest (see :mod:`msk_auth.core.keys`). Keys from an
older system may have fewer bits, or people chose them. Store them with a digest of :class:`Argon2Digest`, and pass the same
:class:`Argon2Digest` to :class:`~msk_auth.KeyHasher` as `slow`.

Each verification of such a key takes one core for about 20 ms and 19 MiB of memory, even for a wrong secret. A
client that knows the id of such a key can cause this cost, so the asynchronous authenticator runs these
verifications in threads, two at a time. Replace imported keys as soon as you can: rotating a key makes an ordinary key.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from argon2 import PasswordHasher, Type
from argon2.exceptions import VerifyMismatchError

__all__ = ["Argon2Digest"]

_PREFIX: Final = "$argon2id$"
_ENCODED: Final = re.compile(
    r"\$argon2id\$v=19\$m=([0-9]{1,7}),t=([0-9]{1,2}),p=([0-9]{1,2})\$[0-9A-Za-z+/]{11,86}\$[0-9A-Za-z+/]{16,86}"
)

# The maximum cost of a digest. An attacker planted a more expensive digest to make each verification expensive.
_MAX_MEMORY_KIB: Final = 256 * 1024
_MAX_PASSES: Final = 16
_MAX_LANES: Final = 16

_PROFILES: Final = {
    # The first choice of the OWASP Password Storage Cheat Sheet.
    "owasp": PasswordHasher(
        time_cost=2, memory_cost=19_456, parallelism=1, hash_len=32, salt_len=16, type=Type.ID
    ),
    "cheap": PasswordHasher(
        time_cost=1, memory_cost=8, parallelism=1, hash_len=32, salt_len=16, type=Type.ID
    ),
}


class Argon2Digest:
    """Makes and verifies Argon2id digests of whole keys (RFC 9106). Thread-safe.

    Args:
        profile: The cost of a new digest. `"owasp"`: 19 MiB of memory and two passes. `"cheap"`: next to nothing, only for
            tests. Verifying an existing digest has the digest's own cost.
    """

    def __init__(self, profile: Literal["owasp", "cheap"] = "owasp") -> None:
        self._hasher = _PROFILES[profile]

    def digest(self, key: str) -> str:
        """The encoded digest of a whole key, with a random salt: `$argon2id$v=19$m=…,t=…,p=…$salt$hash`."""
        return self._hasher.hash(key)

    def recognises(self, encoded: str) -> bool:
        """True if `encoded` names this scheme."""
        return encoded.startswith(_PREFIX)

    def verify(self, key: str, encoded: str) -> bool:
        """True if `encoded` is the digest of `key`. False at once if it is malformed or too expensive.

        Raises:
            argon2.exceptions.VerificationError: There is not enough memory.
        """
        match = _ENCODED.fullmatch(encoded)
        if match is None:
            return False
        memory, passes, lanes = map(int, match.groups())
        if memory > _MAX_MEMORY_KIB or passes > _MAX_PASSES or lanes > _MAX_LANES:
            return False
        try:
            return self._hasher.verify(encoded, key)
        except VerifyMismatchError:
            return False
