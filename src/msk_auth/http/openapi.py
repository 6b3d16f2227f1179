"""The OpenAPI description (OpenAPI 3.1): the security schemes, problems, and the operation of each route in the tables.

While a framework makes its document, what is the library's has names that no application has: `msk_auth.errors.Problem`.
:func:`complete_document` replaces them by the names of the finished document, so that nothing of the application's changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias, cast

from msk_auth.core.administration import MAX_REVOKED
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.fields import (
    EDITABLE,
    FIELD_OF,
    INPUTS,
    KEY_FIELDS,
    LABEL,
    MAX_OWNER_ID_LENGTH,
    FieldKind,
    KeyField,
)
from msk_auth.core.key_management import MAX_OVERLAP, MAX_PAGE
from msk_auth.core.policy import Policy

from .answers import FORM_TYPE, JSON_TYPE, PROBLEM_TYPE, Errors

Json: TypeAlias = dict[str, Any]

TAG: Final = "API keys"

OWN: Final = "msk_auth."
"""What begins the names of the library's schemas and schemes in a document that is not finished."""

_LOGIN: Final = f"{OWN}login"
_ANY: Final = f"{OWN}any"
_KEY: Final = f"{OWN}key"
_GUARDS: Final = frozenset({_LOGIN, _ANY, _KEY})
_REF: Final = "#/components/schemas/"

_SCHEMES: Final[Json] = {
    "Login": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token of an interactive login.",
    },
    "ApiKey": {"type": "http", "scheme": "bearer", "description": "An API key."},
}

_METHODS: Final = frozenset(
    {"delete", "get", "head", "options", "patch", "post", "put", "query", "trace"}
)


def _ref(name: str) -> Json:
    """A reference to one of :data:`_SCHEMAS`."""
    return {"$ref": f"{_REF}{OWN}{name}"}


_PROBLEM: Final[Json] = {
    "title": "Problem",
    "description": "What went wrong (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "format": "uri", "description": "Where `code` is explained."},
        "title": {"type": "string", "description": "The same for every problem of this code."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What happened and what to do about it."},
        "code": {"type": "string", "description": "The stable name of this kind of problem."},
        "errors": {
            "type": "array",
            "description": "With `input_invalid`: what is wrong with which member.",
            "items": _ref("ProblemField"),
        },
    },
}

_CHALLENGE: Final[Json] = {
    "WWW-Authenticate": {
        "description": "The challenge (RFC 6750, section 3).",
        "schema": {"type": "string"},
    }
}
_RETRY: Final[Json] = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
}


_PROBLEM_CONTENT: Final[Json] = {PROBLEM_TYPE: {"schema": _ref("Problem")}}


def _problem(description: str, headers: Json | None = None) -> Json:
    response: Json = {"description": description, "content": _PROBLEM_CONTENT}
    return response if headers is None else {**response, "headers": headers}


# What every guarded operation may answer.
_UNREADABLE: Final = _problem("The header Authorization, or the body, cannot be read.")
_REFUSALS: Final[Json] = {
    "400": _UNREADABLE,
    "401": _problem("The credentials are missing or refused.", _CHALLENGE),
    "403": _problem(
        "A permission is missing, or this kind of credential is not accepted, or not from this address.",
        _CHALLENGE,
    ),
    "503": _problem("The credentials cannot be verified right now.", _RETRY),
}
INVALID: Final = _problem("The input is not valid.")
_NOT_FOUND: Final = _problem("You have no API key with this id.")
_CONFLICT: Final = _problem("The state of your keys does not allow it.")
_TOO_LARGE: Final = _problem("The body is longer than this operation ever needs.")
_TOO_MANY: Final = _problem("Too many attempts.", _RETRY)

_TIME: Final[Json] = {"type": "string", "format": "date-time"}

_JSON_TYPES: Final = {
    FieldKind.ID: "string",
    FieldKind.TEXT: "string",
    FieldKind.MOMENT: "string",
    FieldKind.TEXTS: "array",
    FieldKind.NUMBER: "integer",
}


def _field_schema(field: KeyField, *, takes_null: bool) -> Json:
    kind = _JSON_TYPES[field.kind]
    schema: Json = {"type": [kind, "null"] if takes_null else kind}
    if field.kind is FieldKind.TEXTS:
        schema["items"] = {"type": "string"}
    if field.kind is FieldKind.MOMENT:
        schema["format"] = "date-time"
    return schema


def _shown_schema(field: KeyField) -> Json:
    """A field in the document of a key."""
    about = {} if field.about is None else {"description": field.about}
    return _field_schema(field, takes_null=field.empty is None) | about


def _input_schema(name: str) -> Json:
    """A field in the request that sets it."""
    field = FIELD_OF[name]
    return _field_schema(field, takes_null=not field.is_required) | dict(INPUTS[name].schema)


_KEY_PROPERTIES: Final[Json] = {
    **{field.name: _shown_schema(field) for field in KEY_FIELDS if field.is_shown},
    "mask": {"type": "string", "description": "What may be shown of the key."},
    "status": {"type": "string", "enum": ["active", "revoked", "expired"]},
}


def _object(properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


def _json(schema: Json) -> Json:
    return {JSON_TYPE: {"schema": schema}}


_CREATED: Final[Json] = {
    "description": "The key. Its value is in this answer and nowhere else.",
    "content": _json(_ref("CreatedApiKey")),
    "headers": {"Location": {"schema": {"type": "string", "format": "uri-reference"}}},
}
_PAGE: Final = _object(
    {
        "items": {"type": "array", "items": _ref("ApiKey")},
        "next_cursor": {"type": ["string", "null"]},
    }
)
_LABEL: Final[Json] = {"type": "string", "pattern": f"^{LABEL}$"}
_UPDATE_BODY: Final[Json] = {
    "description": "A merge patch (RFC 7396): what is absent stays, and null clears. Lists are replaced as a whole.",
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {name: _input_schema(name) for name in EDITABLE},
}
_CREATE_BODY: Final[Json] = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        **{name: _input_schema(name) for name in INPUTS},
        "expires_in_days": {
            "type": ["integer", "null"],
            "minimum": 1,
            "description": "Absent: the default here. Null: it does not expire.",
        },
    },
}
_ROTATE_BODY: Final[Json] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "overlap_seconds": {
            "type": "integer",
            "minimum": 0,
            "maximum": int(MAX_OVERLAP.total_seconds()),
            "default": 0,
            "description": "How long the old key keeps working.",
        }
    },
}
_IDS: Final[Json] = {"type": "array", "items": {"type": "string"}}
_REVOKE_BODY: Final[Json] = {
    "type": "object",
    "required": ["ids"],
    "additionalProperties": False,
    "properties": {"ids": {**_IDS, "minItems": 1, "maxItems": MAX_REVOKED}},
}
_REVOKED: Final = _object(
    {
        "items": {"type": "array", "items": _ref("ApiKey")},
        "not_found": {**_IDS, "description": "The ids that no key has."},
    }
)
_ID: Final[Json] = {"name": "key_id", "in": "path", "required": True, "schema": {"type": "string"}}


_TOKEN: Final[Json] = {
    "type": "object",
    "required": ["token"],
    "properties": {
        "token": {"type": "string", "description": "The key."},
        "token_type_hint": {"type": "string", "description": "Ignored (RFC 7009, section 2.1)."},
    },
}
_MATCH: Final = _object({name: {"type": "string"} for name in ("token", "type", "url", "source")})
_LEAK_LABEL: Final = _object(
    {
        "token_hash": {"type": "string", "description": "SHA-256 of the match."},
        "token_type": {"type": "string"},
        "label": {"type": "string", "enum": ["true_positive", "false_positive"]},
    }
)


_SCHEMAS: Final[Json] = {
    "ApiKey": _object(_KEY_PROPERTIES),
    "ApiKeyPage": _PAGE,
    "CreatedApiKey": _object(
        {**_KEY_PROPERTIES, "key": {"type": "string", "description": "The value."}}
    ),
    "LeakLabel": _LEAK_LABEL,
    "LeakMatch": _MATCH,
    "NewApiKey": _CREATE_BODY,
    "PresentedApiKey": _TOKEN,
    "Problem": _PROBLEM,
    "ProblemField": _object({"field": {"type": "string"}, "message": {"type": "string"}}),
    "RevokeApiKeys": _REVOKE_BODY,
    "RevokedApiKeys": _REVOKED,
    "RotateApiKey": _ROTATE_BODY,
    "UpdateApiKey": _UPDATE_BODY,
}
"""What the operations refer to, by its name in a finished document."""


def _query(name: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": schema}


_ON_BEHALF_OF: Final[Json] = {
    **_query("on_behalf_of", {"type": "string", "maxLength": MAX_OWNER_ID_LENGTH}),
    "description": "The id of another owner, such as a service account, whose keys it is about. For logins only.",
}
_DELEGATED: Final[Json] = {**_ON_BEHALF_OF, "name": f"{OWN}on_behalf_of"}
"""The same in a document that is not finished: only then it is known whether the application has a `may_act_for`."""

_STATUS: Final = _query("status", {"type": "string", "enum": ["active", "revoked", "expired"]})
_PAGING: Final = (
    _query("cursor", {"type": "string"}),
    _query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 50}),
)

LIST_KEYS: Final[Json] = {
    "summary": "List your API keys, newest first",
    "parameters": [_STATUS, *_PAGING, _query("label", _LABEL), _DELEGATED],
    "responses": {
        "200": {"description": "A page of keys.", "content": _json(_ref("ApiKeyPage"))},
        "422": INVALID,
    },
}
CREATE_KEY: Final[Json] = {
    "summary": "Create an API key",
    "parameters": [_DELEGATED],
    "requestBody": {"required": True, "content": _json(_ref("NewApiKey"))},
    "responses": {"201": _CREATED, "409": _CONFLICT, "413": _TOO_LARGE, "422": INVALID},
}
GET_KEY: Final[Json] = {
    "summary": "Show one of your API keys",
    "parameters": [_ID, _DELEGATED],
    "responses": {
        "200": {"description": "The key.", "content": _json(_ref("ApiKey"))},
        "404": _NOT_FOUND,
    },
}
UPDATE_KEY: Final[Json] = {
    "summary": "Edit the name, description, labels or networks of an API key",
    "parameters": [_ID, _DELEGATED],
    "requestBody": {"required": True, "content": _json(_ref("UpdateApiKey"))},
    "responses": {
        "200": {"description": "The edited key.", "content": _json(_ref("ApiKey"))},
        "404": _NOT_FOUND,
        "413": _TOO_LARGE,
        "422": INVALID,
    },
}
ROTATE_KEY: Final[Json] = {
    "summary": "Replace an API key by a successor",
    "parameters": [_ID, _DELEGATED],
    "requestBody": {"required": False, "content": _json(_ref("RotateApiKey"))},
    "responses": {
        "201": _CREATED,
        "404": _NOT_FOUND,
        "409": _CONFLICT,
        "413": _TOO_LARGE,
        "422": INVALID,
    },
}
REVOKE_KEY: Final[Json] = {
    "summary": "Revoke an API key, for good",
    "parameters": [_ID, _DELEGATED],
    "responses": {
        "200": {"description": "The revoked key.", "content": _json(_ref("ApiKey"))},
        "404": _NOT_FOUND,
    },
}
DELETE_KEY: Final[Json] = {
    "summary": "Revoke an API key and take it off the list",
    "parameters": [_ID, _DELEGATED],
    "responses": {
        "204": {"description": "The key is revoked and off the list."},
        "404": _NOT_FOUND,
    },
}
LIST_ALL_KEYS: Final[Json] = {
    "summary": "List the API keys of all owners",
    "description": "By owner, each owner's newest first. A page may have fewer items than `limit`, possibly none, and a"
    " `next_cursor` all the same: go on until that is null.",
    "parameters": [
        _query("owner_id", {"type": "string", "maxLength": MAX_OWNER_ID_LENGTH}),
        _STATUS,
        {**_query("created_before", _TIME), "description": "Keys that are older."},
        {
            **_query("unused_since", _TIME),
            "description": "Keys that were not used then or later, also those that never were.",
        },
        {
            **_query("expires_before", _TIME),
            "description": "Keys that expire earlier. A key that does not expire never matches.",
        },
        _query("label", _LABEL),
        *_PAGING,
    ],
    "responses": {
        "200": {"description": "A page of keys.", "content": _json(_ref("ApiKeyPage"))},
        "422": INVALID,
    },
}
REVOKE_ANY_KEYS: Final[Json] = {
    "summary": "Revoke API keys of any owners, for good",
    "requestBody": {"required": True, "content": _json(_ref("RevokeApiKeys"))},
    "responses": {
        "200": {
            "description": "The revoked keys, and the ids that no key has.",
            "content": _json(_ref("RevokedApiKeys")),
        },
        "413": _TOO_LARGE,
        "422": INVALID,
    },
}
REVOKE_ANY_KEY: Final[Json] = {
    "summary": "Revoke an API key of any owner, for good",
    "parameters": [_ID],
    "responses": {
        "200": {"description": "The revoked key.", "content": _json(_ref("ApiKey"))},
        "404": _problem("No API key has this id."),
    },
}
REVOKE_PRESENTED_KEY: Final[Json] = {
    "summary": "Revoke an API key by showing it",
    "description": "For the holder of a key, without a login. The answer is the same whether the key exists or not.",
    "requestBody": {
        "required": True,
        "content": {
            media_type: {"schema": _ref("PresentedApiKey")} for media_type in (JSON_TYPE, FORM_TYPE)
        },
    },
    "responses": {
        "200": {
            "description": "If this was a key, it does not work any more.",
            "content": _json({"type": "object"}),
        },
        "400": _UNREADABLE,
        "413": _TOO_LARGE,
        "422": INVALID,
        "429": _TOO_MANY,
        "503": _problem("Whether it was revoked is not known.", _RETRY),
    },
}
RECEIVE_LEAK_REPORT: Final[Json] = {
    "summary": "Receive a report of GitHub's secret scanning",
    "parameters": [
        {"name": name, "in": "header", "required": True, "schema": {"type": "string"}}
        for name in ("Github-Public-Key-Identifier", "Github-Public-Key-Signature")
    ],
    "requestBody": {
        "required": True,
        "content": _json({"type": "array", "items": _ref("LeakMatch")}),
    },
    "responses": {
        "200": {
            "description": "Which of the matches are keys of this application. They are revoked.",
            "content": _json({"type": "array", "items": _ref("LeakLabel")}),
        },
        "400": _UNREADABLE,
        "403": _problem("The report is not signed by GitHub."),
        "413": _TOO_LARGE,
        "422": INVALID,
        "429": _TOO_MANY,
        "503": _problem("The signature cannot be checked, or the keys not be revoked.", _RETRY),
    },
}


def scheme_name(policies: Iterable[Policy]) -> str:
    """What guards demand, as the name of a security scheme in a document that is not finished.

    The name holds the permissions, since not every framework writes the scopes of a scheme into an operation.

    Args:
        policies: All of them have to be met.
    """
    wanted = tuple(policies)
    permissions = frozenset[str]().union(*(policy.permissions for policy in wanted))
    kind = _KEY if any(policy.key for policy in wanted) else _ANY
    if any(policy.interactive for policy in wanted):
        kind = _LOGIN
    return " ".join((kind, *sorted(permissions)))


def complete_document(
    document: Json, *, errors: Errors, login_scheme: str | None = None, delegates: bool = False
) -> Json:
    """Finish a document: security, answers and schemas of the library. Doing it twice changes nothing.

    Every guarded operation gets the answers of its guard, unless the application described its own.

    Args:
        document: The framework's, with what :func:`scheme_name` gives and the operations of the tables in it.
        errors: With `all` the framework's own form of validation errors makes way for the problem document. With `http` the
            answers of the library are in a form of the application's, which is not known here.
        login_scheme: The application's own security scheme that its logins use. None: the library describes one.
        delegates: Whether the application has a `may_act_for`, so that the key routes take `on_behalf_of`.

    Raises:
        ConfigurationError: The application has no such scheme.
    """
    if errors == "all":
        _replace_validation_errors(document)
    components: Json = document.get("components", {})
    schemes: Json = components.get("securitySchemes", {})
    for operation in operations(document):
        requirements = cast("list[Json]", operation.get("security", []))
        if any(map(_guards_in, requirements)):
            operation["security"] = _alternatives(requirements, schemes, login_scheme)
            responses: Json = operation.get("responses", {})
            described = {
                status: each for status, each in _REFUSALS.items() if status not in responses
            }
            operation["responses"] = {**responses, **described}
        if errors == "http":
            operation["responses"] = _without_form(operation.get("responses", {}))
        if "parameters" in operation:
            _settle_delegation(operation, delegates=delegates)
    for name in _guards_in(schemes):
        del schemes[name]
    schemas: Json = components.get("schemas", {})
    document["paths"] = _with_names(document.get("paths", {}), schemas)
    added = {"schemas": schemas, "securitySchemes": schemes}
    components = components | {name: found for name, found in added.items() if found}
    if components:
        document["components"] = components
    return document


def _without_form(responses: Json) -> Json:
    """The responses without the form of the library's problems."""
    return {
        status: {
            name: value
            for name, value in response.items()
            if name != "content" or value != _PROBLEM_CONTENT
        }
        for status, response in responses.items()
    }


def _settle_delegation(operation: Json, *, delegates: bool) -> None:
    """Replace the parameter of the key routes by its name in a finished document, or leave it out."""
    given = cast("list[Json]", operation["parameters"])
    others = [each for each in given if each.get("name") != _DELEGATED["name"]]
    if len(others) == len(given):
        return
    operation["parameters"] = [*others, _ON_BEHALF_OF] if delegates else others
    if not operation["parameters"]:
        del operation["parameters"]


def _guards_in(schemes: Json) -> list[str]:
    """The names of what :func:`scheme_name` gave among those of schemes."""
    return [name for name in schemes if name.partition(" ")[0] in _GUARDS]


def _alternatives(requirements: list[Json], schemes: Json, login_scheme: str | None) -> list[Json]:
    """The requirements of an operation, with those of guards as what a reader can use: a login, a key, or either."""
    theirs = [each for each in requirements if not _guards_in(each)]
    guards = [name.split() for each in requirements for name in _guards_in(each)]
    kinds = {kind for kind, *_ in guards}
    permissions = sorted({each for _, *named in guards for each in named})
    wanted: list[Json]
    if _LOGIN not in kinds and _KEY in kinds:
        wanted = []
    elif login_scheme is None:
        wanted = [{_add(schemes, "Login", _SCHEMES["Login"]): permissions}]
    elif login_scheme in schemes:
        # Its scopes are the application's, and no permissions.
        wanted = [{login_scheme: []}]
    else:
        raise ConfigurationError(
            f"The document has no security scheme {login_scheme!r}. Name one of the application's in login_scheme:"
            f" {', '.join(sorted(schemes)) or 'there is none'}."
        )
    if _LOGIN not in kinds:
        wanted.append({_add(schemes, "ApiKey", _SCHEMES["ApiKey"]): permissions})
    return [*theirs, *(each for each in wanted if each not in theirs)]


def _with_names(value: object, schemas: Json) -> Any:
    """A copy of a part of a document in which the library's schemas have names, and are among the schemas."""
    if isinstance(value, list):
        return [_with_names(each, schemas) for each in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    members = cast("Json", value)
    target = members.get("$ref")
    if isinstance(target, str) and target.startswith(_REF + OWN):
        name = target.removeprefix(_REF + OWN)
        return {"$ref": _REF + _add(schemas, name, _with_names(_SCHEMAS[name], schemas))}
    return {name: _with_names(member, schemas) for name, member in members.items()}


def _add(components: Json, name: str, component: Json) -> str:
    """Add a component, and return its name. The application may have another one of that name."""
    if components.get(name, component) != component:
        name = f"MskAuth{name}"
    components[name] = component
    return name


def _replace_validation_errors(document: Json) -> None:
    for operation in operations(document):
        responses: Json = operation.get("responses", {})
        if _is_validation_error(responses.get("422")):
            responses["422"] = INVALID
    schemas: Json = document.get("components", {}).get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        if f"'{_REF}{name}'" not in str(document):
            schemas.pop(name, None)


def operations(document: Json) -> Iterator[Json]:
    """Every operation of a document."""
    for path in cast("dict[str, Json]", document.get("paths", {})).values():
        for method, operation in path.items():
            if method in _METHODS:
                yield operation


def _is_validation_error(response: object) -> bool:
    return "#/components/schemas/HTTPValidationError" in str(response)
