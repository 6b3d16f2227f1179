"""The key routes without a framework: bytes in, typed requests or `InputInvalid` out, and the answers.

::

    GET    {prefix}                    the caller's keys               any credential
    POST   {prefix}                    a new key, shown once           interactive
    GET    {prefix}/{key_id}           one of the caller's keys        any credential
    POST   {prefix}/{key_id}/rotate    its successor, shown once       interactive
    POST   {prefix}/{key_id}/revoke    the revoked key                 interactive
    DELETE {prefix}/{key_id}           nothing                         interactive

An adapter checks the policy first and reads the body only then, at most :data:`MAX_BODY` bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn, TypeGuard, cast
from urllib.parse import parse_qsl, quote

from msk_auth.clock import Clock
from msk_auth.core.errors import ConfigurationError, FieldError, InputInvalid
from msk_auth.core.flows import CreatedKey, Lifetime
from msk_auth.core.keys import KeyFormat
from msk_auth.core.model import ApiKey, KeyPage, KeyStatus
from msk_auth.core.policy import Policy, require, require_interactive

from .answers import NO_STORE, Answer, json_answer

MAX_BODY: Final = 65_536
"""How many bytes of a body are read. A name and a hundred scopes need less than 15,000."""

READ: Final[Policy] = require()
MANAGE: Final[Policy] = require_interactive()

NO_CONTENT: Final = Answer(204, (NO_STORE,))

_MAX_DAYS: Final = 36_500
_MAX_SECONDS: Final = 90 * 86_400
_MAX_SCOPES: Final = 100
_MAX_ERRORS: Final = 20
_MAX_PARAMETERS: Final = 100
_JSON_TYPE: Final = re.compile(r"application/(json|[!#$&^_.+0-9a-z-]+\+json)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """The body of `POST {prefix}`."""

    name: str
    scopes: tuple[str, ...] | None
    lifetime: Lifetime


@dataclass(frozen=True, slots=True)
class RotateRequest:
    """The body of `POST {prefix}/{key_id}/rotate`."""

    overlap: timedelta


@dataclass(frozen=True, slots=True)
class ListRequest:
    """The query of `GET {prefix}`."""

    status: KeyStatus | None
    cursor: str | None
    limit: int


def check_prefix(prefix: str) -> None:
    """Find out while starting whether key routes can be served under this path.

    Raises:
        ConfigurationError: It does not begin with a slash, or ends with one.
    """
    if not prefix.startswith("/") or prefix.endswith("/"):
        raise ConfigurationError(
            f"The prefix {prefix!r} of the key routes does not work. Write it with a slash at its"
            " beginning and none at its end, such as '/api/keys'."
        )


def parse_create(body: bytes, content_type: str | None) -> CreateRequest:
    """Read `{name, scopes?, expires_in_days?}`.

    No `scopes`, or null, means all that the owner may. No `expires_in_days` means the application's
    default, null means that the key does not expire.

    Raises:
        InputInvalid: With every member that is wrong.
    """
    members = read_object(body, content_type)
    wrong = unknown_members(members, {"name", "scopes", "expires_in_days"})
    name = members.get("name")
    if not isinstance(name, str):
        said = "Give the key a name, as text." if "name" in members else "This member is required."
        wrong.append(FieldError("name", said))
        name = ""
    scopes = _scopes(members.get("scopes"), wrong)
    lifetime: Lifetime = "default"
    if "expires_in_days" in members:
        lifetime = _lifetime(members["expires_in_days"], wrong)
    if wrong:
        raise InputInvalid(wrong)
    return CreateRequest(name, scopes, lifetime)


def parse_rotate(body: bytes, content_type: str | None) -> RotateRequest:
    """Read `{overlap_seconds?}`; no body at all means no overlap.

    Raises:
        InputInvalid: With every member that is wrong.
    """
    if not body:
        return RotateRequest(timedelta(0))
    members = read_object(body, content_type)
    wrong = unknown_members(members, {"overlap_seconds"})
    seconds = members.get("overlap_seconds", 0)
    overlap = timedelta(0)
    if _is_whole(seconds) and 0 <= seconds <= _MAX_SECONDS:
        overlap = timedelta(seconds=seconds)
    else:
        wrong.append(
            FieldError(
                "overlap_seconds", f"Choose a whole number between 0 and {_MAX_SECONDS} seconds."
            )
        )
    if wrong:
        raise InputInvalid(wrong)
    return RotateRequest(overlap)


def parse_list(query: bytes) -> ListRequest:
    """Read `?status=&cursor=&limit=`; parameters of other names are ignored.

    Args:
        query: The raw query string, without the question mark.

    Raises:
        InputInvalid: With every parameter that is wrong.
    """
    try:
        pairs = parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, max_num_fields=_MAX_PARAMETERS
        )
    except ValueError:
        raise InputInvalid.of("", "The query has too many parameters.") from None
    wrong: list[FieldError] = []
    known: dict[str, str] = {}
    for name, value in pairs:
        if name in known:
            wrong.append(FieldError(name, "Give this parameter once."))
        elif name in {"status", "cursor", "limit"}:
            known[name] = value
    status = None
    if "status" in known:
        try:
            status = KeyStatus(known["status"])
        except ValueError:
            choices = ", ".join(state.value for state in KeyStatus)
            wrong.append(FieldError("status", f"Choose one of: {choices}."))
    limit = 50
    if "limit" in known:
        if re.fullmatch(r"[0-9]{1,6}", known["limit"]):
            limit = int(known["limit"])
        else:
            wrong.append(FieldError("limit", "Choose a whole number from 1 on."))
    if wrong:
        raise InputInvalid(wrong[:_MAX_ERRORS])
    return ListRequest(status, known.get("cursor"), limit)


class KeyPresenter:
    """Writes the answers of the key routes.

    Args:
        key_format: For the masks.
        clock: For the status of a key at this moment.
    """

    def __init__(self, key_format: KeyFormat, clock: Clock) -> None:
        self._key_format = key_format
        self._clock = clock

    def page(self, page: KeyPage) -> Answer:
        """The answer of `GET {prefix}`."""
        items = [self._document(record) for record in page.items]
        return json_answer(200, {"items": items, "next_cursor": page.next_cursor})

    def key(self, record: ApiKey) -> Answer:
        """The answer that shows a key's record."""
        return json_answer(200, self._document(record))

    def created(self, created: CreatedKey, *, collection: str) -> Answer:
        """The one answer in which a key's value exists.

        Args:
            created: The key just made.
            collection: The path of the key routes as the client sees it, not percent-encoded.
        """
        # Quoted: a path parameter in the application's own prefix may hold anything.
        location = f"{quote(collection.rstrip('/'))}/{created.record.id}"
        document = self._document(created.record) | {"key": created.value.reveal()}
        return json_answer(201, document, [("location", location)])

    def _document(self, record: ApiKey) -> dict[str, object]:
        return {
            "id": record.id,
            "name": record.name,
            "mask": self._key_format.mask(record.id),
            "owner_id": record.owner_id,
            "scopes": None if record.scopes is None else sorted(record.scopes),
            "created_at": _rfc3339(record.created_at),
            "expires_at": _rfc3339(record.expires_at),
            "last_used_at": _rfc3339(record.last_used_at),
            "revoked_at": _rfc3339(record.revoked_at),
            "replaced_by": record.replaced_by,
            "status": record.status(self._clock.now()).value,
        }


def _rfc3339(at: datetime | None) -> str | None:
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def read_object(body: bytes, content_type: str | None) -> dict[str, object]:
    """The members of a JSON object.

    Raises:
        InputInvalid: It is none, or a browser could have been made to send it.
    """
    # A form of another site can send text/plain without asking first, and never application/json.
    if content_type is None or not _JSON_TYPE.fullmatch(content_type.partition(";")[0].strip()):
        raise InputInvalid.of("", "Send JSON with the header 'Content-Type: application/json'.")
    try:
        value: object = json.loads(
            body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError):
        # Not UTF-8, not JSON, a number with thousands of digits, or nested too deeply.
        raise InputInvalid.of("", "The body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise InputInvalid.of("", "Send a JSON object.")
    return cast("dict[str, object]", value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise InputInvalid.of("", "The body has two members of the same name.")
    return members


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON


def unknown_members(members: Mapping[str, object], known: Iterable[str]) -> list[FieldError]:
    """What is wrong with members that nobody knows."""
    unknown = sorted(members.keys() - set(known))[:_MAX_ERRORS]
    said = f"There is no such member here. Known are: {', '.join(sorted(known))}."
    # A name that cannot be shown is somebody's attempt, not a spelling mistake.
    return [
        FieldError(name if len(name) <= 100 and name.isprintable() else "", said)
        for name in unknown
    ]


def _is_whole(value: object) -> TypeGuard[int]:
    # `true` is an int in Python, and no number in JSON; 1.0 is one, and not whole enough to be sure.
    return type(value) is int


def _scopes(value: object, wrong: list[FieldError]) -> tuple[str, ...] | None:
    if value is None:
        return None
    items = cast("list[object]", value) if isinstance(value, list) else None
    texts = None if items is None else [item for item in items if isinstance(item, str)]
    if items is None or texts is None or len(texts) != len(items):
        wrong.append(FieldError("scopes", "Send a list of permissions, or null for all of yours."))
        return None
    if len(texts) > _MAX_SCOPES:
        wrong.append(FieldError("scopes", f"Choose at most {_MAX_SCOPES} scopes."))
        return None
    return tuple(texts)


def _lifetime(value: object, wrong: list[FieldError]) -> Lifetime:
    if value is None:
        return "unlimited"
    if not _is_whole(value) or not 1 <= value <= _MAX_DAYS:
        wrong.append(
            FieldError(
                "expires_in_days",
                f"Choose a whole number of days between 1 and {_MAX_DAYS}, or null for no end.",
            )
        )
        return "default"
    return timedelta(days=value)
