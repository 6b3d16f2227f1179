"""Rules for passwords, and their hashes.

Rules (NIST SP 800-63B-4, section 3.1.1; ASVS 5.0, section 6.2): length instead of composition, every Unicode character,
no truncation, no password that is easy to guess. Hashes are Argon2id with OWASP's parameters; each needs a
core and 19 MiB for some 30 ms, so hashes run in threads, only a few at once.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from itertools import combinations
from typing import Final, TypeVar

from argon2 import Parameters, PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError
from argon2.profiles import RFC_9106_LOW_MEMORY

from msk_auth.errors import InputInvalid, TooManyAttempts

_log = logging.getLogger(__name__)

T = TypeVar("T")

MIN_LENGTH: Final = 12
MAX_LENGTH: Final = 128

OWASP: Final = replace(RFC_9106_LOW_MEMORY, time_cost=2, memory_cost=19_456, parallelism=1)
"""OWASP's Password Storage Cheat Sheet: m=19 MiB, t=2, p=1."""

# The most waiting hashes for each worker: about a second of work. Further requests get 429 with Retry-After.
_WAITING_PER_WORKER: Final = 32
_RETRY_SECONDS: Final = 2

# Longer input cannot be a password, so it is not normalised.
_MAX_TYPED: Final = 8 * MAX_LENGTH

# The number of different pieces that a password needs: a common word or a keyboard run counts like one character.
_MIN_PIECES: Final = 4
_ROWS: Final = (
    "abcdefghijklmnopqrstuvwxyz",
    "01234567890",
    "qwertyuiop",
    "qwertzuiop",
    "azertyuiop",
    "asdfghjkl",
    "zxcvbnm",
)
_LEET: Final = str.maketrans("@4310$5!7", "aaeiossit")


class Passwords:
    """Hashes and verifies passwords. :meth:`close` releases its threads.

    Args:
        parameters: Argon2's cost; `argon2.profiles.CHEAPEST` is for tests.
        concurrency: The number of passwords hashed at once.
    """

    def __init__(self, parameters: Parameters = OWASP, *, concurrency: int = 2) -> None:
        self._hasher = PasswordHasher.from_parameters(parameters)
        self._executor = ThreadPoolExecutor(concurrency, thread_name_prefix="password")
        self._slots = threading.BoundedSemaphore(concurrency * (1 + _WAITING_PER_WORKER))
        # Verified if there is no hash, so that an unknown user takes as long as a known user.
        self._dummy = self._hasher.hash("no user's password")

    async def hash(self, password: str) -> str:
        """The encoded hash of a password that passed :func:`check_password`.

        Raises:
            TooManyAttempts: Too many passwords wait to be hashed.
        """
        return await self._run(partial(self._hasher.hash, password))

    async def verify(self, password: str, encoded: str | None) -> bool:
        """True if `encoded` is the hash of `password`. The time taken does not depend on the result.

        Args:
            password: The typed password.
            encoded: The hash; None for an unknown user or a user without a password, which never matches.

        Raises:
            TooManyAttempts: Too many passwords wait to be hashed.
        """
        if len(password) > _MAX_TYPED:
            password, encoded = "", None
        expected = self._dummy if encoded is None else encoded
        matches = await self._run(partial(self._matches, normalised(password), expected))
        return matches and encoded is not None

    def needs_rehash(self, encoded: str) -> bool:
        """True if a hash has other parameters than the present ones."""
        return self._hasher.check_needs_rehash(encoded)

    def close(self) -> None:
        """Finish running hashes, and cancel waiting ones."""
        self._executor.shutdown(cancel_futures=True)

    def _matches(self, password: str, encoded: str) -> bool:
        try:
            # JSON can contain a lone surrogate. Such a wrong password takes as long as any other.
            return self._hasher.verify(encoded, password.encode("utf-8", "surrogatepass"))
        except VerifyMismatchError:
            return False
        except (InvalidHashError, VerificationError):
            _log.exception("a stored password hash is invalid")
            return False

    async def _run(self, work: Callable[[], T]) -> T:
        if not self._slots.acquire(blocking=False):
            raise TooManyAttempts(_RETRY_SECONDS)
        future = self._executor.submit(work)
        # Released when the thread ends, not when the caller is cancelled: cancellation stops no hash.
        future.add_done_callback(lambda _: self._slots.release())
        return await asyncio.wrap_future(future)


def check_password(password: str, username: str, *, field: str = "password") -> str:
    """Validate a new password, and return its text for hashing.

    Args:
        password: The typed password.
        username: The user's name, which the password must not contain.
        field: The name of the input in the error.

    Raises:
        InputInvalid: The password is too short, too long, contains the user's name or is easy to guess.
    """
    text = normalised(password[: _MAX_TYPED + 1])
    if len(text) > MAX_LENGTH:
        raise InputInvalid.of(field, f"A password may have {MAX_LENGTH} characters at most.")
    if len(text) < MIN_LENGTH:
        raise InputInvalid.of(
            field,
            f"A password needs {MIN_LENGTH} characters or more. Choose several words.",
        )
    if any(unicodedata.category(character) == "Cs" for character in text):
        raise InputInvalid.of(field, "A password cannot contain a lone surrogate. Remove it.")
    if len(username) >= 4 and username.casefold() in text.casefold():
        raise InputInvalid.of(field, "A password must not contain the user name.")
    if len(_pieces(text)) < _MIN_PIECES:
        raise InputInvalid.of(field, "This password is easy to guess. Choose another password.")
    return text


def normalised(password: str) -> str:
    """A password in Unicode's NFC, so that all keyboards produce the same text."""
    return unicodedata.normalize("NFC", password)


def _pieces(password: str) -> set[str]:
    """The pieces that a guesser would combine: common words, runs of alphabet or keyboard, and single characters.

    Guessers try spaces and ASCII punctuation between all pieces, so these do not count.
    """
    return {found[0] for found in _piece().finditer(_plain(password))}


@cache
def _piece() -> re.Pattern[str]:
    text = (
        resources.files("task_service.accounts").joinpath("common_passwords.txt").read_text("utf-8")
    )
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    guessed = {word for line in lines for word in line.split()}
    guessed.update(str(year) for year in range(1940, 2050))
    for row in _ROWS:
        for keys in (row, row[::-1]):
            ends = combinations(range(len(keys) + 1), 2)
            guessed.update(keys[start:end] for start, end in ends if end - start >= 3)
    longest_first = sorted({_plain(text) for text in guessed}, key=len, reverse=True)
    return re.compile(rf"{'|'.join(map(re.escape, longest_first))}|(.)\1\1+|[^\W_]|[^\x00-\x7f]")


def _plain(password: str) -> str:
    return password.casefold().translate(_LEET)
