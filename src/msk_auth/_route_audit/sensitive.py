"""Which routes look like administration of credentials or of users: the words for it, in English.

A path or a permission is taken apart into words. Placeholders of a path do not count: `/tasks/{user_id}` is about tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_WORDS: Final = frozenset(
    [
        "account",
        "admin",
        "administration",
        "administrator",
        "apikey",
        "apitoken",
        "credential",
        "grant",
        "impersonate",
        "impersonation",
        "invitation",
        "invite",
        "key",
        "membership",
        "mfa",
        "otp",
        "owner",
        "passkey",
        "passphrase",
        "passwd",
        "password",
        "permission",
        "privilege",
        "pwd",
        "recovery",
        "role",
        "secret",
        "session",
        "signup",
        "superuser",
        "sudo",
        "token",
        "totp",
        "user",
        "webauthn",
    ]
)
_PLACEHOLDER: Final = re.compile(r"\{[^}]*\}|<[^>]*>")
_WORD: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def sensitive_word(path: str, permissions: Iterable[str]) -> str | None:
    """The first word of the path or the permissions that speaks of credentials or users, or None."""
    for text in (_PLACEHOLDER.sub(" ", path), *permissions):
        for match in _WORD.finditer(text):
            word = match[0].lower()
            if word in _WORDS or word.removesuffix("s") in _WORDS:
                return word
    return None
