"""Ids of the service's own resources: a prefix for the type, and random base62."""

import secrets
import string

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_LENGTH = 16


def new_id(prefix: str) -> str:
    """A fresh id such as `tsk_4fZ0…`: `prefix`, an underscore and 16 base62 characters (95 bits)."""
    return f"{prefix}_{''.join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))}"


def is_id(text: str, prefix: str) -> bool:
    """True if `text` has the form of :func:`new_id`; other texts need no look-up."""
    head, _, tail = text.partition("_")
    return head == prefix and len(tail) == _LENGTH and tail.isascii() and tail.isalnum()
