"""Ids of the service's own things: a type prefix and random base62, so that a log line says what it is about."""

import secrets
import string

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_LENGTH = 16


def new_id(prefix: str) -> str:
    """A fresh id such as `tsk_4fZ0…`: `prefix`, an underscore and 16 base62 characters (95 bits)."""
    return f"{prefix}_{''.join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))}"


def is_id(text: str, prefix: str) -> bool:
    """True if `text` has the form that :func:`new_id` gives; anything else need not reach a database."""
    head, _, tail = text.partition("_")
    return head == prefix and len(tail) == _LENGTH and all(c in _ALPHABET for c in tail)
