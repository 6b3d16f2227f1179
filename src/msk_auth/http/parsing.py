"""Parses requests of the routes: from bytes to arguments of the authenticator's methods, by name.

Errors are an :class:`~msk_auth.errors.InputInvalid` with every invalid member. The core checks the fields of a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias, cast
from urllib.parse import parse_qs

from msk_auth.core import strict_json
from msk_auth.core.errors import FieldError, InputInvalid
from msk_auth.core.fields import EDITABLE, INPUTS, clean
from msk_auth.core.key_management import MAX_LIFETIME, MAX_OVERLAP, Lifetime
from msk_auth.core.model import KeyStatus

from .answers import FORM_TYPE

_MAX_ERRORS: Final = 20
_MAX_PARAMETERS: Final = 100
_MAX_FORM_FIELDS: Final = 20
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})",
    re.IGNORECASE,
)
_JSON_TYPE: Final = re.compile(r"application/(json|[!#$&^_.+0-9a-z-]+\+json)", re.IGNORECASE)

Reader: TypeAlias = Callable[[Any], Any]
"""Returns the value of a member or parameter. A `ValueError` has the sentence for the client."""


def parse_create(body: bytes, content_type: str | None) -> dict[str, Any]:
    """Read a new key: `expires_in_days`, and the fields that people set.

    No `scopes`, or null, means all permissions of the owner. No `expires_in_days` means the application's default, null
    means that the key does not expire.

    Raises:
        InputInvalid: With every member that is wrong.
    """
    read = _read(read_object(body, content_type), _NEW_KEY, required={"name"})
    return {"lifetime": read.pop("expires_in_days", "default"), **read}


def parse_update(body: bytes, content_type: str | None) -> dict[str, Any]:
    """Read the fields that people edit, as a merge patch (RFC 7396): absent members stay, and null clears a member.

    Raises:
        InputInvalid: With every member that is wrong.
    """
    return _read(read_object(body, content_type), _EDIT)


def parse_rotate(body: bytes, content_type: str | None) -> timedelta:
    """Read `{overlap_seconds?}`; no body at all means no overlap.

    Raises:
        InputInvalid: With every member that is wrong.
    """
    members = read_object(body, content_type) if body else {}
    read = _read(members, {"overlap_seconds": _overlap})
    overlap: timedelta = read.get("overlap_seconds", timedelta(0))
    return overlap


def parse_ids(body: bytes, content_type: str | None) -> tuple[str, ...]:
    """Read `{ids}`, a list of texts.

    Raises:
        InputInvalid: With every member that is wrong.
    """
    return tuple(_read(read_object(body, content_type), {"ids": _texts}, required={"ids"})["ids"])


def parse_revocation(body: bytes, content_type: str | None) -> str:
    """Read `token=…` as a form, which RFC 7009 sends, or `{"token": …}`.

    Returns:
        The value to revoke, in any format.

    Raises:
        InputInvalid: There is no token, or several; no message repeats a token.
    """
    members: Mapping[str, object]
    readers: dict[str, Reader] = {"token": _text, "token_type_hint": lambda hint: hint}
    if content_type is not None and _media_type(content_type).lower() == FORM_TYPE:
        form = _parameters(body, _MAX_FORM_FIELDS)
        # Unknown parameters are ignored, as OAuth clients expect (RFC 6749, section 3.2).
        members = {"token": form["token"]} if "token" in form else {}
        readers = {"token": partial(_read_one, _text)}
    else:
        members = read_object(body, content_type)
    token: str = _read(members, readers, required={"token"})["token"]
    return token


def parse_query(query: bytes, names: Collection[str]) -> dict[str, Any]:
    """Read the parameters of these names that are there.

    Args:
        query: The raw query string, without the question mark.
        names: Those that the operation knows.

    Raises:
        InputInvalid: With every parameter that is wrong, or unknown: a misspelt one would not limit what is listed, or would make a
            key of another owner.
    """
    readers = {name: partial(_read_one, _PARAMETERS.get(name, _text)) for name in names}
    return _read(_parameters(query, _MAX_PARAMETERS), readers, kind="query parameter")


def read_object(body: bytes, content_type: str | None) -> dict[str, object]:
    """The members of a JSON object.

    Raises:
        InputInvalid: The body is not a JSON object, or another site could have made a browser send it.
    """
    # A form of another site can send text/plain without a preflight, but never application/json.
    if content_type is None or not _JSON_TYPE.fullmatch(_media_type(content_type)):
        raise InputInvalid.of("", "Send JSON with the header 'Content-Type: application/json'.")
    try:
        return strict_json.read_object(body)
    except ValueError:
        message = "Send a valid JSON object, with each member once."
        raise InputInvalid.of("", message) from None


def _read(
    members: Mapping[str, Any],
    readers: Mapping[str, Reader],
    *,
    required: Collection[str] = (),
    kind: str = "field",
) -> dict[str, Any]:
    """The values of the members or parameters that are there, each by its reader.

    Raises:
        InputInvalid: With every member that is wrong, unknown or missing.
    """
    wrong = _unknown(members, readers, kind)
    read: dict[str, Any] = {}
    for name, reader in readers.items():
        if name in members:
            try:
                read[name] = reader(members[name])
            except ValueError as error:
                wrong.append(FieldError(name, str(error)))
        elif name in required:
            wrong.append(FieldError(name, "This member is required."))
    if wrong:
        raise InputInvalid(wrong[:_MAX_ERRORS])
    return read


def _unknown(members: Mapping[str, object], known: Iterable[str], kind: str) -> list[FieldError]:
    """An error for each unknown member or parameter."""
    allowed = f"Allowed: {', '.join(sorted(known)) or 'none'}."
    return [
        # A long or unprintable name is an attack, not a spelling mistake: it is not repeated.
        FieldError(name, f"Unknown {kind} {name!r}. {allowed}")
        if len(name) <= 100 and name.isprintable()
        else FieldError("", f"Unknown {kind}. {allowed}")
        for name in sorted(members.keys() - set(known))[:_MAX_ERRORS]
    ]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("Send a text.")


def _texts(value: object) -> list[str]:
    items = cast("list[object]", value if isinstance(value, list) else [None])
    if not all(isinstance(item, str) for item in items):
        raise ValueError("Send a list of texts.")
    return cast("list[str]", items)


def _whole(value: object, least: int, most: int, unit: str) -> int:
    # To JSON Schema 30.0 is an integer. `true` is an int in Python but not a number in JSON.
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"Choose a whole number between {least} and {most} {unit}.")
    return value


def _lifetime(value: object) -> Lifetime:
    if value is None:
        return "unlimited"
    return timedelta(days=_whole(value, 1, MAX_LIFETIME.days, "days, or null for no end"))


def _overlap(value: object) -> timedelta:
    return timedelta(seconds=_whole(value, 0, int(MAX_OVERLAP.total_seconds()), "seconds"))


_NEW_KEY: Final[Mapping[str, Reader]] = {
    **{name: partial(clean, name) for name in INPUTS},
    "expires_in_days": _lifetime,
}
_EDIT: Final[Mapping[str, Reader]] = {name: _NEW_KEY[name] for name in EDITABLE}


def _status(text: str) -> KeyStatus:
    choices = [state.value for state in KeyStatus]
    if text not in choices:
        raise ValueError(f"Choose one of: {', '.join(choices)}.")
    return KeyStatus(text)


def _limit(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,6}", text) is None:
        raise ValueError("Choose a whole number of at least 1.")
    return int(text)


def _moment(text: str) -> datetime:
    # Python accepts more than RFC 3339, also times without an offset.
    if _RFC3339.fullmatch(text):
        with suppress(ValueError):
            return datetime.fromisoformat(text.upper())
    raise ValueError("Send a time with its offset, such as 2026-03-01T12:00:00Z.")


# For parameters that are not text.
_PARAMETERS: Final[Mapping[str, Reader]] = {
    "status": _status,
    "limit": _limit,
    **dict.fromkeys(("created_before", "unused_since", "expires_before"), _moment),
}


def _read_one(read: Reader, values: list[str]) -> Any:
    """Read a parameter that may be there once."""
    if len(values) > 1:
        raise ValueError("Give this parameter once.")
    return read(values[0])


def _parameters(raw: bytes, most: int) -> dict[str, list[str]]:
    """The values of each parameter of a query or a form."""
    try:
        text = raw.decode("ascii")
        return parse_qs(text, keep_blank_values=True, max_num_fields=most)
    except ValueError:
        message = f"Send at most {most} parameters, percent-encoded."
        raise InputInvalid.of("", message) from None


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip()
