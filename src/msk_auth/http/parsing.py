"""Parses requests of the routes: from bytes to arguments of the authenticator's methods, by name.

Errors are an :class:`~msk_auth.errors.InputInvalid` with every invalid member. The core checks the values themselves.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn, TypeGuard, cast
from urllib.parse import parse_qsl

from msk_auth.core.errors import FieldError, InputInvalid
from msk_auth.core.fields import EDITABLE, FIELD_OF, INPUTS, FieldKind
from msk_auth.core.key_management import MAX_LIFETIME, MAX_OVERLAP, Lifetime
from msk_auth.core.model import KeyStatus

from .answers import FORM_TYPE

MAX_DAYS: Final = MAX_LIFETIME.days
MAX_SECONDS: Final = int(MAX_OVERLAP.total_seconds())

_MAX_ERRORS: Final = 20
_MAX_PARAMETERS: Final = 100
_MAX_FORM_FIELDS: Final = 20
_MOMENTS: Final = ("created_before", "unused_since", "expires_before")
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})",
    re.IGNORECASE,
)
_JSON_TYPE: Final = re.compile(r"application/(json|[!#$&^_.+0-9a-z-]+\+json)", re.IGNORECASE)


def parse_create(body: bytes, content_type: str | None) -> dict[str, Any]:
    """Read a new key: `expires_in_days`, and the fields that people set.

    No `scopes`, or null, means all permissions of the owner. No `expires_in_days` means the application's default, null
    means that the key does not expire.

    Raises:
        InputInvalid: With every member that is wrong.
    """
    members = read_object(body, content_type)
    wrong = _unknown(members, {"expires_in_days", *INPUTS})
    fields = {name: _field(name, members, wrong) for name in INPUTS}
    lifetime: Lifetime = "default"
    if "expires_in_days" in members:
        lifetime = _lifetime(members["expires_in_days"], wrong)
    if wrong:
        raise InputInvalid(wrong)
    return {"lifetime": lifetime, **fields}


def parse_update(body: bytes, content_type: str | None) -> dict[str, Any]:
    """Read the fields that people edit, as a merge patch (RFC 7396): absent members stay, and null clears a member.

    Raises:
        InputInvalid: With every member that is wrong.
    """
    members = read_object(body, content_type)
    wrong = _unknown(members, EDITABLE)
    changes = {name: _field(name, members, wrong) for name in EDITABLE if name in members}
    if wrong:
        raise InputInvalid(wrong)
    return changes


def parse_rotate(body: bytes, content_type: str | None) -> timedelta:
    """Read `{overlap_seconds?}`; no body at all means no overlap.

    Raises:
        InputInvalid: With every member that is wrong.
    """
    if not body:
        return timedelta(0)
    members = read_object(body, content_type)
    wrong = _unknown(members, {"overlap_seconds"})
    seconds = members.get("overlap_seconds", 0)
    if not _is_whole(seconds) or not 0 <= seconds <= MAX_SECONDS:
        allowed = f"Choose a whole number between 0 and {MAX_SECONDS} seconds."
        wrong.append(FieldError("overlap_seconds", allowed))
        seconds = 0
    if wrong:
        raise InputInvalid(wrong)
    return timedelta(seconds=seconds)


def parse_ids(body: bytes, content_type: str | None) -> tuple[str, ...]:
    """Read `{ids}`, a list of texts.

    Raises:
        InputInvalid: With every member that is wrong.
    """
    members = read_object(body, content_type)
    wrong = _unknown(members, {"ids"})
    ids = _strings(members.get("ids"))
    if ids is None:
        message = "Send a list of ids." if "ids" in members else "This member is required."
        wrong.append(FieldError("ids", message))
    if ids is None or wrong:
        raise InputInvalid(wrong)
    return tuple(ids)


def parse_revocation(body: bytes, content_type: str | None) -> str:
    """Read `token=…` as a form, which RFC 7009 sends, or `{"token": …}`.

    Returns:
        The value to revoke, in any format.

    Raises:
        InputInvalid: There is no token, or several; no message repeats a token.
    """
    if content_type is not None and _media_type(content_type).lower() == FORM_TYPE:
        return _parse_form(body)
    members = read_object(body, content_type)
    wrong = _unknown(members, {"token", "token_type_hint"})
    token = _text(members, "token", "Send the key as text.", wrong)
    if wrong:
        raise InputInvalid(wrong)
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
    try:
        parameters = parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_PARAMETERS
        )
    except ValueError:
        raise InputInvalid.of("", "The query has too many parameters.") from None
    read: dict[str, Any] = dict(parameters)
    wrong = _unknown(read, names, "query parameter")
    sent = Counter(name for name, _ in parameters)
    for name in names:
        if sent[name] > 1:
            wrong.append(FieldError(name, "Give this parameter once."))
        elif name in read and name in _READERS:
            try:
                read[name] = _READERS[name](read[name])
            except ValueError as error:
                wrong.append(FieldError(name, str(error)))
    if wrong:
        raise InputInvalid(wrong[:_MAX_ERRORS])
    return read


def read_object(body: bytes, content_type: str | None) -> dict[str, object]:
    """The members of a JSON object.

    Raises:
        InputInvalid: The body is not a JSON object, or another site could have made a browser send it.
    """
    # A form of another site can send text/plain without a preflight, but never application/json.
    if content_type is None or not _JSON_TYPE.fullmatch(_media_type(content_type)):
        raise InputInvalid.of("", "Send JSON with the header 'Content-Type: application/json'.")
    try:
        value: object = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_number,
        )
    except (ValueError, RecursionError):
        # Not UTF-8, not JSON, a number with thousands of digits, or nested too deeply.
        raise InputInvalid.of("", "The body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise InputInvalid.of("", "Send a JSON object.")
    return cast("dict[str, object]", value)


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
_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "status": _status,
    "limit": _limit,
    **dict.fromkeys(_MOMENTS, _moment),
}


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise InputInvalid.of("", "The body has two members of the same name.")
    return members


def _number(text: str) -> float:
    # To JSON Schema 30.0 is an integer. Beyond 2**53 a float is not certainly the number that was meant.
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= 2**53 else value


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON


def _parse_form(body: bytes) -> str:
    try:
        text = body.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FORM_FIELDS)
    except ValueError:
        raise InputInvalid.of("", "The form is malformed.") from None
    # Unknown parameters are ignored, as OAuth clients expect (RFC 6749, section 3.2).
    tokens = [value for name, value in pairs if name == "token"]
    if len(tokens) != 1:
        raise InputInvalid.of("token", "Send one token." if tokens else "This member is required.")
    return tokens[0]


def _unknown(
    members: Mapping[str, object], known: Iterable[str], kind: str = "field"
) -> list[FieldError]:
    """An error for each unknown member or parameter."""
    allowed = f"Allowed: {', '.join(sorted(known)) or 'none'}."
    return [
        # A long or unprintable name is an attack, not a spelling mistake: it is not repeated.
        FieldError(name, f"Unknown {kind} {name!r}. {allowed}")
        if len(name) <= 100 and name.isprintable()
        else FieldError("", f"Unknown {kind}. {allowed}")
        for name in sorted(members.keys() - set(known))[:_MAX_ERRORS]
    ]


def _text(members: Mapping[str, object], name: str, otherwise: str, wrong: list[FieldError]) -> str:
    value = members.get(name)
    if isinstance(value, str):
        return value
    wrong.append(FieldError(name, otherwise if name in members else "This member is required."))
    return ""


def _is_whole(value: object) -> TypeGuard[int]:
    # `true` is an int in Python but not a number in JSON.
    return type(value) is int


def _field(name: str, members: Mapping[str, object], wrong: list[FieldError]) -> Any:
    """The value of a key's field, checked for its type."""
    field = FIELD_OF[name]
    value = members.get(name)
    if field.is_required:
        return _text(members, name, f"Give the key a {name}, as text.", wrong)
    if value is None:
        return field.empty
    null = f", or null for {INPUTS[name].null_means}."
    if field.kind is FieldKind.TEXT:
        if isinstance(value, str):
            return value
        wrong.append(FieldError(name, f"Send a text{null}"))
        return None
    texts = _strings(value)
    if texts is None:
        wrong.append(FieldError(name, f"Send a list of {name}{null}"))
    return texts


def _strings(value: object) -> list[str] | None:
    """A list of texts; None for other values."""
    if not isinstance(value, list):
        return None
    items = cast("list[object]", value)
    texts = [item for item in items if isinstance(item, str)]
    return texts if len(texts) == len(items) else None


def _lifetime(value: object, wrong: list[FieldError]) -> Lifetime:
    if value is None:
        return "unlimited"
    if not _is_whole(value) or not 1 <= value <= MAX_DAYS:
        allowed = f"Choose a whole number of days between 1 and {MAX_DAYS}, or null for no end."
        wrong.append(FieldError("expires_in_days", allowed))
        return "default"
    return timedelta(days=value)
