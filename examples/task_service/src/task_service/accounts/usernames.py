"""How user names are written and compared."""

from __future__ import annotations

import unicodedata
from typing import Final

MAX_USERNAME: Final = 64


def normalised_username(username: str) -> str:
    """A name as it is stored and compared: without spaces around it, NFKC, lower case."""
    # Bounded before it is normalised; one character can become 18.
    text = unicodedata.normalize("NFKC", username[: 2 * MAX_USERNAME].strip()).lower()
    # Lower case of a composed character may be decomposed.
    return unicodedata.normalize("NFKC", text)


def is_username(name: str) -> bool:
    """Whether a normalised name can be somebody's."""
    # Printable leaves out control and formatting characters, all spaces but the plain one, and half characters.
    return 0 < len(name) <= MAX_USERNAME and name.isprintable() and " " not in name
