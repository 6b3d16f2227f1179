"""Ids of the service's own resources: a prefix for the type, and random base62."""

import secrets
import string

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_LENGTH = 16
# From a random byte to a letter or a digit. Bytes from 248 on, which would come upon some of them more often, are left out.
_LETTERS = (_ALPHABET * 5)[:256].encode()
_BIASED = bytes(range(4 * len(_ALPHABET), 256))


def new_id(prefix: str) -> str:
    """A fresh id such as `tsk_4fZ0…`: `prefix`, an underscore and 16 base62 characters (95 bits)."""
    letters = b""
    while len(letters) < _LENGTH:
        letters += secrets.token_bytes(2 * _LENGTH).translate(_LETTERS, _BIASED)
    return f"{prefix}_{letters[:_LENGTH].decode()}"


def is_id(text: str, prefix: str) -> bool:
    """True if `text` has the form of :func:`new_id`; other texts need not reach a database."""
    head, _, tail = text.partition("_")
    return head == prefix and len(tail) == _LENGTH and tail.isascii() and tail.isalnum()
