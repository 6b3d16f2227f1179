"""The names of users and service accounts, and the rules for a new name."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Final

from pydantic import AfterValidator

from msk_auth.errors import InputInvalid

MAX_USERNAME: Final = 64


def normalised_username(username: str) -> str:
    """A name for storage and comparison: without surrounding spaces, in NFKC and lower case."""
    # Bounded before it is normalised; one character can become 18.
    text = unicodedata.normalize("NFKC", username[: 2 * MAX_USERNAME].strip()).lower()
    # Lower case of a composed character may be decomposed.
    return unicodedata.normalize("NFKC", text)


Username = Annotated[str, AfterValidator(normalised_username)]
"""A typed name in a query."""


def is_username(name: str) -> bool:
    """True if a normalised name is valid."""
    # isprintable() excludes control and formatting characters, all spaces but U+0020, and lone surrogates.
    return 0 < len(name) <= MAX_USERNAME and name.isprintable() and " " not in name


def check_name(name: str, *, field: str = "username") -> str:
    """Validate the name of a new user or service account, and return its stored form.

    Args:
        name: The typed name.
        field: The name of the input in the error.

    Raises:
        InputInvalid: The name is too long, empty, or has spaces or invisible characters.
    """
    normalised = normalised_username(name)
    if not is_username(normalised) or len(name) > MAX_USERNAME:
        raise InputInvalid.of(
            field, f"A name has 1 to {MAX_USERNAME} visible characters and no spaces."
        )
    return normalised
