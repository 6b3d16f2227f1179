"""The OpenAPI description (OpenAPI 3.1): the security scheme, problems, and the operation of each route in the tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias, cast

from msk_auth.core.flows import MAX_NAME_LENGTH, MAX_OVERLAP, MAX_PAGE, MAX_SCOPES

from .answers import FORM_TYPE, JSON_TYPE, PROBLEM_TYPE

Json: TypeAlias = dict[str, Any]

SCHEME_NAME: Final = "bearer"
BEARER_DESCRIPTION: Final = "An API key, or the JWT of an interactive login."

_METHODS: Final = frozenset(
    {"delete", "get", "head", "options", "patch", "post", "put", "query", "trace"}
)

_PROBLEM_SCHEMA: Final[Json] = {
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
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
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


def _problem(description: str, headers: Json | None = None) -> Json:
    schema = {"$ref": "#/components/schemas/Problem"}
    response: Json = {"description": description, "content": {PROBLEM_TYPE: {"schema": schema}}}
    return response if headers is None else {**response, "headers": headers}


# What every guarded operation may answer.
_REFUSALS: Final[Json] = {
    "401": _problem("The credentials are missing or refused.", _CHALLENGE),
    "403": _problem("A permission or an interactive login is missing.", _CHALLENGE),
    "503": _problem("The credentials cannot be verified right now.", _RETRY),
}
INVALID: Final = _problem("The input is not valid.")
_NOT_FOUND: Final = _problem("You have no API key with this id.")
_CONFLICT: Final = _problem("The state of your keys does not allow it.")
_TOO_LARGE: Final = _problem("The body is longer than this operation ever needs.")
_TOO_MANY: Final = _problem("Too many attempts.", _RETRY)

_TIME: Final[Json] = {"type": "string", "format": "date-time"}
_TIME_OR_NULL: Final[Json] = {"type": ["string", "null"], "format": "date-time"}

_KEY_PROPERTIES: Final[Json] = {
    "id": {"type": "string"},
    "name": {"type": "string"},
    "mask": {"type": "string", "description": "What may be shown of the key."},
    "owner_id": {"type": "string"},
    "scopes": {
        "type": ["array", "null"],
        "items": {"type": "string"},
        "description": "What the key may do at most; null means all that its owner may.",
    },
    "created_at": _TIME,
    "expires_at": _TIME_OR_NULL,
    "last_used_at": _TIME_OR_NULL,
    "revoked_at": _TIME_OR_NULL,
    "replaced_by": {"type": ["string", "null"], "description": "The id of its successor."},
    "status": {"type": "string", "enum": ["active", "revoked", "expired"]},
}


def _object(properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


def _json(schema: Json) -> Json:
    return {JSON_TYPE: {"schema": schema}}


_KEY: Final = _object(_KEY_PROPERTIES)
_CREATED: Final[Json] = {
    "description": "The key. Its value is in this answer and nowhere else.",
    "content": _json(
        _object({**_KEY_PROPERTIES, "key": {"type": "string", "description": "The value."}})
    ),
    "headers": {"Location": {"schema": {"type": "string", "format": "uri-reference"}}},
}
_PAGE: Final = _object(
    {
        "items": {"type": "array", "items": _KEY},
        "next_cursor": {"type": ["string", "null"]},
    }
)
_CREATE_BODY: Final[Json] = {
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_LENGTH},
        "scopes": {
            "type": ["array", "null"],
            "items": {"type": "string"},
            "maxItems": MAX_SCOPES,
            "description": "Absent or null: all that you may, now and later.",
        },
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
_LABEL: Final = _object(
    {
        "token_hash": {"type": "string", "description": "SHA-256 of the match."},
        "token_type": {"type": "string"},
        "label": {"type": "string", "enum": ["true_positive", "false_positive"]},
    }
)


def _query(name: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": schema}


LIST_KEYS: Final[Json] = {
    "summary": "List your API keys, newest first",
    "parameters": [
        _query("status", {"type": "string", "enum": ["active", "revoked", "expired"]}),
        _query("cursor", {"type": "string"}),
        _query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 50}),
    ],
    "responses": {
        "200": {"description": "A page of keys.", "content": _json(_PAGE)},
        "422": INVALID,
    },
}
CREATE_KEY: Final[Json] = {
    "summary": "Create an API key",
    "requestBody": {"required": True, "content": _json(_CREATE_BODY)},
    "responses": {"201": _CREATED, "409": _CONFLICT, "422": INVALID},
}
GET_KEY: Final[Json] = {
    "summary": "Show one of your API keys",
    "parameters": [_ID],
    "responses": {
        "200": {"description": "The key.", "content": _json(_KEY)},
        "404": _NOT_FOUND,
    },
}
ROTATE_KEY: Final[Json] = {
    "summary": "Replace an API key by a successor",
    "parameters": [_ID],
    "requestBody": {"required": False, "content": _json(_ROTATE_BODY)},
    "responses": {"201": _CREATED, "404": _NOT_FOUND, "409": _CONFLICT, "422": INVALID},
}
REVOKE_KEY: Final[Json] = {
    "summary": "Revoke an API key, for good",
    "parameters": [_ID],
    "responses": {
        "200": {"description": "The revoked key.", "content": _json(_KEY)},
        "404": _NOT_FOUND,
    },
}
DELETE_KEY: Final[Json] = {
    "summary": "Revoke an API key and take it off the list",
    "parameters": [_ID],
    "responses": {
        "204": {"description": "The key is revoked and off the list."},
        "404": _NOT_FOUND,
    },
}
REVOKE_PRESENTED_KEY: Final[Json] = {
    "summary": "Revoke an API key by showing it",
    "description": "For the holder of a key, without a login. The answer is the same whether the key exists or not.",
    "requestBody": {
        "required": True,
        "content": {JSON_TYPE: {"schema": _TOKEN}, FORM_TYPE: {"schema": _TOKEN}},
    },
    "responses": {
        "200": {
            "description": "If this was a key, it does not work any more.",
            "content": _json({"type": "object"}),
        },
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
    "requestBody": {"required": True, "content": _json({"type": "array", "items": _MATCH})},
    "responses": {
        "200": {
            "description": "Which of the matches are keys of this application. They are revoked.",
            "content": _json({"type": "array", "items": _LABEL}),
        },
        "403": _problem("The report is not signed by GitHub."),
        "413": _TOO_LARGE,
        "422": INVALID,
        "429": _TOO_MANY,
        "503": _problem("The signature cannot be checked, or the keys not be revoked.", _RETRY),
    },
}


def document_problems(document: Json, *, all_errors: bool) -> Json:
    """Add the answers of the error handlers to a finished document. Doing it twice changes nothing.

    Every guarded operation gets the answers of its guard, unless the application described its own.

    Args:
        document: The framework's.
        all_errors: The framework's own form of validation errors makes way for the problem document.
    """
    schemas: Json = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.setdefault("Problem", _PROBLEM_SCHEMA)
    for operation in operations(document):
        responses: Json = operation.setdefault("responses", {})
        if all_errors and _is_validation_error(responses.get("422")):
            responses["422"] = INVALID
        if any(SCHEME_NAME in alternative for alternative in operation.get("security", ())):
            for status, response in _REFUSALS.items():
                responses.setdefault(status, response)
    if all_errors:
        for replaced in ("HTTPValidationError", "ValidationError"):
            schemas.pop(replaced, None)
    return document


def operations(document: Json) -> Iterator[Json]:
    """Every operation of a document."""
    for path in cast("dict[str, Json]", document.get("paths", {})).values():
        for method, operation in path.items():
            if method in _METHODS:
                yield operation


def _is_validation_error(response: object) -> bool:
    return "#/components/schemas/HTTPValidationError" in str(response)
