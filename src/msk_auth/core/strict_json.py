"""JSON objects that every parser reads alike: in UTF-8, with each member once, and with numbers of JSON only (RFC 8259, section 4)."""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn, cast


def read_object(raw: bytes) -> dict[str, object]:
    """The members of a JSON object.

    Raises:
        ValueError: This is not a JSON object, it has two members of the same name at any depth, or it is nested too deeply.
    """
    try:
        value: object = _DECODER.decode(raw.decode("utf-8"))
    except RecursionError:
        raise ValueError("too many nested values") from None
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004 - what was read
    return cast("dict[str, object]", value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("two members of the same name")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# `json.loads` makes a decoder for each call that has hooks.
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
