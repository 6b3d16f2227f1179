"""The fields of a key: one table.

Code that reads requests, writes documents or rows, describes them in OpenAPI, creates columns or tests stores reads
:data:`KEY_FIELDS`. A new field is a row here and an attribute of :class:`~msk_auth.ApiKey` with the same name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any, Final, TypedDict, cast

from .errors import FieldError
from .networks import NETWORK, parse_network

MAX_OWNER_ID_LENGTH: Final = 255
"""The maximum length of an owner's id in stores."""

# Labels are compared, and used in queries and command lines: no look-alikes, no spaces, nothing to escape.
LABEL: Final = "[0-9a-z][0-9a-z._:/-]{0,49}"
LABEL_FORM: Final = (
    "A label has 1 to 50 lower-case letters, digits and . _ : / - and begins with a letter or a digit,"
    " such as env:prod."
)
# No wildcard and no space: a resource is compared with a route's resource.
RESOURCE: Final = "[a-z][0-9a-z_-]{0,31}:[0-9A-Za-z._~:@+=/-]{1,96}"
RESOURCE_FORM: Final = "A resource is a kind and an id, such as task:42. The kind has up to 32 characters and the id up to 96."
# Invisible, although Unicode classes them as letters and symbols: fillers, joiners, a blank.
_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_KEY_ID_LENGTH: Final = 64


class _Edited(TypedDict, total=False):
    description: str | None
    labels: Iterable[str]
    networks: Iterable[str] | None


class KeyDetails(_Edited, total=False):
    """The fields of a new key besides its name: see `create_key`. Missing fields are empty."""

    resources: Iterable[str] | None


class KeyEdit(_Edited, total=False):
    """The new values in an edit of a key. Missing fields stay."""

    name: str


class KeyUpdate(TypedDict, total=False):
    """The new values of an edit for a store: valid, and frozen. Missing fields stay.

    Attributes:
        name: As in `ApiKey`, like the other members.
        description: None for no description.
        labels: All labels, which replace the old ones.
        networks: All networks, in the same way; None for everywhere.
    """

    name: str
    description: str | None
    labels: frozenset[str]
    networks: frozenset[str] | None


_TEXT_LIST: Final[dict[str, object]] = {"type": "array", "items": {"type": "string"}}


class FieldKind(Enum):
    """The type of a field in stores and documents, with its JSON Schema."""

    ID = "id", {"type": "string"}
    """A text that is compared by code point, and bounded."""
    TEXT = "text", {"type": "string"}
    MOMENT = "moment", {"type": "string", "format": "date-time"}
    """A time; RFC 3339 in documents."""
    TEXTS = "texts", _TEXT_LIST
    """A set of texts; a sorted array in documents."""
    NUMBER = "number", {"type": "integer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldInput:
    """The input of a field that people set: a text on one line, or texts.

    Attributes:
        most: The maximum number of characters of a text, or of texts.
        least: Their minimum number.
        read: Returns the valid form of each of several texts; raises a `ValueError` with the sentence for the person.
            None: any texts.
        null_means: The meaning of null in a request: "none", "everywhere"; empty if null is refused.
        schema: Further constraints on the value in a request, for OpenAPI.
        is_editable: True if an edit may set the field, not only the creation.
    """

    most: int
    least: int = 0
    read: Callable[[str], str] | None = None
    null_means: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_editable: bool = True


REQUIRED: Final = object()
"""In place of the empty value of a field that is never empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyField:
    """A row of the table.

    Attributes:
        name: The attribute of `ApiKey`, the column, and the member of documents.
        kind: See :class:`FieldKind`.
        empty: The value for keys without this field; `REQUIRED` if every key has a value.
        length: The maximum length of an id.
        is_shown: True if documents contain the field.
        about: The field's description in OpenAPI.
        input: The input, if people set the field; otherwise None.
    """

    name: str
    kind: FieldKind
    empty: Any = REQUIRED
    length: int = 0
    is_shown: bool = True
    about: str | None = None
    input: FieldInput | None = None

    @property
    def is_required(self) -> bool:
        """True if every key has a value."""
        return self.empty is REQUIRED

    def shown_schema(self) -> dict[str, Any]:
        """The JSON Schema of the field in documents."""
        schema = self._schema(takes_null=self.empty is None)
        return schema if self.about is None else {**schema, "description": self.about}

    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the field in requests."""
        schema = self._schema(takes_null=not self.is_required)
        if self.input is None:
            return schema
        unit = "Items" if self.kind is FieldKind.TEXTS else "Length"
        limits: dict[str, Any] = {f"max{unit}": self.input.most}
        if self.input.least:
            limits[f"min{unit}"] = self.input.least
        if self.kind is FieldKind.TEXT:
            limits["pattern"] = _LINE
        return {**schema, **limits, **self.input.schema}

    def _schema(self, *, takes_null: bool) -> dict[str, Any]:
        schema: dict[str, Any] = self.kind.value[1]
        kind: str = schema["type"]
        return {**schema, "type": [kind, "null"] if takes_null else kind}


# A text on one line. A pattern cannot name all invisible characters, which are refused as well.
_LINE: Final = r"^\s*[^\x00-\x1f\x7f-\x9f]*\s*$"


def is_label(text: object) -> bool:
    """True if a key can have this label."""
    return isinstance(text, str) and re.fullmatch(LABEL, text) is not None


def is_resource(text: object) -> bool:
    """True if a key can be bound to this resource."""
    return isinstance(text, str) and re.fullmatch(RESOURCE, text) is not None


def _matching(is_valid: Callable[[str], bool], form: str, text: str) -> str:
    if is_valid(text):
        return text
    raise ValueError(form)


def _network(text: str) -> str:
    return str(parse_network(text))


KEY_FIELDS: Final = (
    KeyField(name="id", kind=FieldKind.ID, length=_KEY_ID_LENGTH),
    KeyField(
        name="name",
        kind=FieldKind.TEXT,
        input=FieldInput(least=1, most=100),
    ),
    KeyField(name="owner_id", kind=FieldKind.ID, length=MAX_OWNER_ID_LENGTH),
    KeyField(name="digest", kind=FieldKind.ID, length=255, is_shown=False),
    KeyField(
        name="scopes",
        kind=FieldKind.TEXTS,
        empty=None,
        about="The permissions that limit the key; null means all of its owner's.",
        input=FieldInput(
            most=100,
            null_means="all of yours",
            schema={"description": "Absent or null: all of your permissions, now and later."},
            is_editable=False,
        ),
    ),
    KeyField(name="created_at", kind=FieldKind.MOMENT),
    KeyField(name="expires_at", kind=FieldKind.MOMENT, empty=None),
    KeyField(name="last_used_at", kind=FieldKind.MOMENT, empty=None),
    KeyField(name="revoked_at", kind=FieldKind.MOMENT, empty=None),
    KeyField(
        name="replaced_by",
        kind=FieldKind.ID,
        empty=None,
        length=_KEY_ID_LENGTH,
        about="The id of the key's successor.",
    ),
    KeyField(name="deleted_at", kind=FieldKind.MOMENT, empty=None, is_shown=False),
    KeyField(
        name="description",
        kind=FieldKind.TEXT,
        empty=None,
        input=FieldInput(most=500, null_means="none"),
    ),
    KeyField(
        name="labels",
        kind=FieldKind.TEXTS,
        empty=frozenset[str](),
        input=FieldInput(
            most=20,
            read=partial(_matching, is_label, LABEL_FORM),
            null_means="none",
            schema={
                "items": {"type": "string", "pattern": f"^{LABEL}$"},
                "description": "Labels for searching.",
            },
        ),
    ),
    KeyField(
        name="networks",
        kind=FieldKind.TEXTS,
        empty=None,
        about="The networks from which the key works; null means everywhere.",
        input=FieldInput(
            least=1,
            most=50,
            read=_network,
            null_means="everywhere",
            schema={
                "items": {
                    "type": "string",
                    "pattern": f"^{NETWORK}$",
                    "examples": ["203.0.113.0/24", "2001:db8::/32"],
                },
                "description": "The networks from which the key works, in CIDR notation; null means everywhere.",
            },
        ),
    ),
    KeyField(name="announced_days", kind=FieldKind.NUMBER, empty=None, is_shown=False),
    KeyField(
        name="resources",
        kind=FieldKind.TEXTS,
        empty=None,
        about="The resources that the key reaches; null means all of its owner's.",
        input=FieldInput(
            most=100,
            read=partial(_matching, is_resource, RESOURCE_FORM),
            null_means="everything of yours",
            schema={
                "items": {"type": "string", "pattern": f"^{RESOURCE}$", "examples": ["task:42"]},
                "description": "Absent or null: all of your resources, now and later.",
            },
            is_editable=False,
        ),
    ),
)
"""Every field, in the order of the attributes of `ApiKey` and of the columns."""

FIELD_OF: Final = {each.name: each for each in KEY_FIELDS}
"""The fields by their names."""

INPUTS: Final = {each.name: each.input for each in KEY_FIELDS if each.input is not None}
"""The inputs of the fields that people set, by their names."""

EDITABLE: Final = tuple(name for name, each in INPUTS.items() if each.is_editable)
"""The names of the fields that people edit."""


def as_json(value: object) -> object:
    """A record's value for JSON: times of RFC 3339, sets sorted."""
    if isinstance(value, datetime):
        utc = value.astimezone(UTC)
        return utc.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return sorted(cast("frozenset[str]", value)) if isinstance(value, frozenset) else value


def clean_new(given: Mapping[str, object], wrong: list[FieldError]) -> dict[str, Any]:
    """The valid values of all fields that people set, for a new key.

    Args:
        given: The input by field name; missing fields are empty.
        wrong: Gets an error for each problem.

    Raises:
        TypeError: A field does not exist.
    """
    empty = {name: FIELD_OF[name].empty for name in INPUTS}
    return empty | _clean_all(given, INPUTS, wrong)


def clean_changes(given: Mapping[str, object], wrong: list[FieldError]) -> KeyUpdate:
    """The valid values of an edit. Arguments and errors are those of :func:`clean_new`; missing fields stay."""
    return cast("KeyUpdate", _clean_all(given, EDITABLE, wrong))


def _clean_all(
    given: Mapping[str, object], known: Iterable[str], wrong: list[FieldError]
) -> dict[str, Any]:
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise TypeError(f"A key has no field {unknown[0]!r} to set. Fields: {', '.join(known)}.")
    values: dict[str, Any] = {name: FIELD_OF[name].empty for name in given}
    for name, value in given.items():
        try:
            values[name] = clean(name, value)
        except ValueError as error:
            wrong.append(FieldError(name, str(error)))
    return values


def clean(name: str, value: Any) -> Any:
    """The valid value of one field's input, of any type.

    Raises:
        ValueError: With the sentence for the person.
    """
    row, given = FIELD_OF[name], INPUTS[name]
    if not row.is_required and value is None:
        return row.empty
    null = "" if row.is_required else f", or null for {given.null_means}"
    if row.kind is FieldKind.TEXT:
        if not isinstance(value, str):
            raise ValueError(f"Give a text{null}.")
        return _clean_line(value, given) or row.empty
    # A single text would become a set of letters, and an object the set of its names.
    is_list = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    items: list[Any] = [*value] if is_list else [None]
    if not all(isinstance(item, str) for item in items):
        raise ValueError(f"Give a list of {name} as texts{null}.")
    texts: frozenset[str] = frozenset(items)
    if len(texts) > given.most:
        raise ValueError(f"Choose at most {given.most} {name}.")
    if len(texts) < given.least:
        # An empty list could mean nowhere or everywhere.
        raise ValueError(
            f"Give {given.least} to {given.most} {name}, or none at all (null) for {given.null_means}."
        )
    return texts if given.read is None else frozenset(map(given.read, texts))


def _clean_line(text: str, given: FieldInput) -> str:
    import unicodedata  # a separate shared library, and few programs make keys

    line = text.strip()
    # At most four code points compose to one, so a longer text is too long in any case; and
    # the time of normalising grows with the square of the length.
    if len(line) <= 4 * given.most:
        line = unicodedata.normalize("NFC", line)
    if not given.least <= len(line) <= given.most:
        raise ValueError(f"Use {given.least or 'up'} to {given.most} characters.")
    if not line.isprintable() or not _INVISIBLE.isdisjoint(line):
        raise ValueError("This text contains control or invisible characters. Leave them out.")
    return line
