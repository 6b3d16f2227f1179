"""The OpenAPI description (OpenAPI 3.1): the security schemes, problems, and the operation of each route in the tables.

While a framework makes its document, the library's parts have names that no application has: `msk_auth.errors.Problem`.
:func:`complete_document` replaces them by their final names, so that the application's parts do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias, cast

from msk_auth.core.administration import MAX_REVOKED
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.fields import (
    EDITABLE,
    FIELD_OF,
    INPUTS,
    LABEL,
    MAX_OWNER_ID_LENGTH,
)
from msk_auth.core.key_management import MAX_LIFETIME, MAX_OVERLAP, MAX_PAGE
from msk_auth.core.model import ApiKey, KeyStatus
from msk_auth.core.policy import SAFE_METHODS, Policy

from .answers import FORM_TYPE, JSON_TYPE, PROBLEM_TYPE, Errors

Json: TypeAlias = dict[str, Any]

TAG: Final = "API keys"

OWN: Final = "msk_auth."
"""The beginning of the names of the library's schemas and schemes in an incomplete document."""

_LOGIN: Final = f"{OWN}login"
_ANY: Final = f"{OWN}any"
_KEY: Final = f"{OWN}key"
_REF: Final = "#/components/schemas/"

_SCHEMES: Final[Json] = {
    "Login": {
        "type": "http",
        "scheme": "bearer",
        "description": "The token of an interactive login.",
    },
    "ApiKey": {"type": "http", "scheme": "bearer", "description": "An API key."},
}

# The schemas of FastAPI and Litestar for invalid input, by status.
_VALIDATION_ERRORS: Final = {
    "422": f"{_REF}HTTPValidationError",
    "400": "'description': 'Validation Exception'",
}
_METHODS: Final = frozenset(
    {"delete", "get", "head", "options", "patch", "post", "put", "query", "trace"}
)


_STRING: Final[Json] = {"type": "string"}
_TIME: Final[Json] = {"type": "string", "format": "date-time"}
_IDS: Final[Json] = {"type": "array", "items": _STRING}


def _ref(name: str) -> Json:
    """A reference to one of :data:`_SCHEMAS`."""
    return {"$ref": f"{_REF}{OWN}{name}"}


def _list_of(name: str) -> Json:
    return {"type": "array", "items": _ref(name)}


def _about(schema: Json, description: str) -> Json:
    return {**schema, "description": description}


def _object(properties: Json, **more: object) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties, **more}


def _body(properties: Json, *required: str) -> Json:
    """The body of a request; other members are refused."""
    schema: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


_STATES: Final[Json] = {"type": "string", "enum": [state.value for state in KeyStatus]}
_KEY_PROPERTIES: Final[Json] = {
    **ApiKey.document_schema()["properties"],
    "mask": _about(_STRING, "The public part of the key."),
    "status": _STATES,
}
_LIFETIME: Final[Json] = {
    "type": ["integer", "null"],
    "minimum": 1,
    "maximum": MAX_LIFETIME.days,
    "description": "Absent: the default lifetime. Null: the key does not expire.",
}
_OVERLAP: Final[Json] = {
    "type": "integer",
    "minimum": 0,
    "maximum": int(MAX_OVERLAP.total_seconds()),
    "default": 0,
    "description": "How long the old key keeps working.",
}
_PRESENTED: Final[Json] = {
    "token": _about(_STRING, "The key."),
    "token_type_hint": _about(_STRING, "Ignored (RFC 7009, section 2.1)."),
}
_PROBLEM: Final[Json] = {
    "type": {
        "type": "string",
        "format": "uri",
        "description": "The address of the explanation of `code`.",
    },
    "title": _about(_STRING, "The same for every problem of this code."),
    "status": {"type": "integer"},
    "detail": _about(_STRING, "The problem and its remedy."),
    "code": _about(_STRING, "The stable name of this kind of problem."),
    "errors": _about(
        _list_of("ProblemField"), "With `input_invalid`: the invalid members with messages."
    ),
}

_SCHEMAS: Final[Json] = {
    "ApiKey": _object(_KEY_PROPERTIES),
    "ApiKeyPage": _object(
        {"items": _list_of("ApiKey"), "next_cursor": {"type": ["string", "null"]}}
    ),
    "CreatedApiKey": _object({**_KEY_PROPERTIES, "key": _about(_STRING, "The value.")}),
    "LeakLabel": _object(
        {
            "token_hash": _about(_STRING, "SHA-256 of the match."),
            "token_type": _STRING,
            "label": {"type": "string", "enum": ["true_positive", "false_positive"]},
        }
    ),
    "LeakMatch": _object(dict.fromkeys(("token", "type", "url", "source"), _STRING)),
    "NewApiKey": _body(
        {name: FIELD_OF[name].input_schema() for name in INPUTS} | {"expires_in_days": _LIFETIME},
        "name",
    ),
    "PresentedApiKey": _body(_PRESENTED, "token"),
    # Others are ignored, as OAuth clients expect.
    "PresentedApiKeyForm": _object(_PRESENTED, required=["token"]),
    "Problem": _object(
        _PROBLEM,
        title="Problem",
        description="A problem document (RFC 9457).",
        required=[name for name in _PROBLEM if name != "errors"],
    ),
    "ProblemField": _object({"field": _STRING, "message": _STRING}),
    "RevokeApiKeys": _body({"ids": {**_IDS, "minItems": 1, "maxItems": MAX_REVOKED}}, "ids"),
    "RevokedApiKeys": _object(
        {"items": _list_of("ApiKey"), "not_found": _about(_IDS, "The unknown ids.")}
    ),
    "RotateApiKey": _body({"overlap_seconds": _OVERLAP}),
    "UpdateApiKey": _about(
        _body({name: FIELD_OF[name].input_schema() for name in EDITABLE}) | {"minProperties": 1},
        "A merge patch (RFC 7396): absent members stay, and null clears a member. Lists are replaced as a whole.",
    ),
}
"""The schemas of the operations, by their names in a completed document."""


_PROBLEM_CONTENT: Final[Json] = {PROBLEM_TYPE: {"schema": _ref("Problem")}}
_CHALLENGE: Final[Json] = {
    "WWW-Authenticate": _about({"schema": _STRING}, "The challenge (RFC 6750, section 3).")
}
_RETRY: Final[Json] = {"Retry-After": _about({"schema": {"type": "integer"}}, "Seconds to wait.")}


def _problem(description: str, headers: Json | None = None) -> Json:
    response: Json = {"description": description, "content": _PROBLEM_CONTENT}
    return response if headers is None else {**response, "headers": headers}


_INVALID: Final = _problem("The input is not valid.")
_UNREADABLE: Final = _problem("The header Authorization, or the body, is malformed.")
_NOT_FOUND: Final = {"404": _problem("You have no API key with this id."), "422": _INVALID}
_CONFLICT: Final = {"409": _problem("The state of your keys does not allow it.")}
# The possible answers of every guarded operation, of one with a body, and of one without a login.
_REFUSALS: Final[Json] = {
    "400": _UNREADABLE,
    "401": _problem("The credentials are missing or refused.", _CHALLENGE),
    "403": _problem(
        "A permission is missing, or the operation does not accept this kind of credential, or this address.",
        _CHALLENGE,
    ),
    "503": _problem("The credentials cannot be verified right now.", _RETRY),
}
_OF_BODY: Final[Json] = {
    "413": _problem("The body is too long for this operation."),
    "422": _INVALID,
}
_OF_PUBLIC: Final[Json] = {"400": _UNREADABLE, "429": _problem("Too many attempts.", _RETRY)}


def _success(description: str, schema: Json, status: str = "200") -> Json:
    return {
        status: {"description": description, "content": {JSON_TYPE: {"schema": schema}}},
    }


def _parameter(name: str, schema: Json, place: str = "query") -> Json:
    return {"name": name, "in": place, "required": place != "query", "schema": schema}


def _operation(
    summary: str,
    responses: Json,
    *parameters: Json,
    body: Json | None = None,
    form: Json | None = None,
    needs_body: bool = True,
    **more: object,
) -> Json:
    """The operation of a route, without the common answers of guarded operations."""
    operation: Json = {"summary": summary, "responses": responses, **more}
    if parameters:
        operation["parameters"] = list(parameters)
    if body is not None:
        content = {JSON_TYPE: {"schema": body}} | (
            {} if form is None else {FORM_TYPE: {"schema": form}}
        )
        operation["requestBody"] = {"required": needs_body, "content": content}
        operation["responses"] = responses | _OF_BODY
    return operation


_CREATED: Final = _success(
    "The key. Only this answer contains its value.", _ref("CreatedApiKey"), "201"
)
_CREATED["201"]["headers"] = {"Location": {"schema": {"type": "string", "format": "uri-reference"}}}
_PAGE: Final = _success("A page of keys.", _ref("ApiKeyPage")) | {"422": _INVALID}
_OWNER: Final[Json] = {"type": "string", "maxLength": MAX_OWNER_ID_LENGTH}
_ON_BEHALF_OF: Final = _about(
    _parameter("on_behalf_of", _OWNER),
    "The id of another owner of the keys, such as a service account. Only for logins.",
)
_DELEGATED: Final[Json] = {**_ON_BEHALF_OF, "name": f"{OWN}on_behalf_of"}
"""The same in an incomplete document: :func:`complete_document` knows whether the application has a `may_act_for`."""

_ID: Final = _parameter("key_id", _STRING, "path")
_STATUS: Final = _parameter("status", _STATES)
_LABELLED: Final = _parameter("label", {"type": "string", "pattern": f"^{LABEL}$"})
_PAGING: Final = (
    _parameter("cursor", _STRING),
    _parameter("limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 50}),
)


def _on_one_key(summary: str, responses: Json, **more: Any) -> Json:
    """An operation on one of the caller's keys."""
    return _operation(summary, responses | _NOT_FOUND, _ID, _DELEGATED, **more)


LIST_KEYS: Final = _operation(
    "List your API keys, newest first", _PAGE, _STATUS, *_PAGING, _LABELLED, _DELEGATED
)
CREATE_KEY: Final = _operation(
    "Create an API key", _CREATED | _CONFLICT, _DELEGATED, body=_ref("NewApiKey")
)
GET_KEY: Final = _on_one_key("Show one of your API keys", _success("The key.", _ref("ApiKey")))
UPDATE_KEY: Final = _on_one_key(
    "Edit an API key", _success("The edited key.", _ref("ApiKey")), body=_ref("UpdateApiKey")
)
ROTATE_KEY: Final = _on_one_key(
    "Replace an API key by a successor",
    _CREATED | _CONFLICT,
    body=_ref("RotateApiKey"),
    needs_body=False,
)
REVOKE_KEY: Final = _on_one_key(
    "Revoke an API key, for good", _success("The revoked key.", _ref("ApiKey"))
)
DELETE_KEY: Final = _on_one_key(
    "Revoke an API key and remove it from the list",
    {"204": {"description": "The key is revoked and removed from the list."}},
)
LIST_ALL_KEYS: Final = _operation(
    "List the API keys of all owners",
    _PAGE,
    _parameter("owner_id", _OWNER),
    _STATUS,
    _about(_parameter("created_before", _TIME), "Keys that are older."),
    _about(
        _parameter("unused_since", _TIME),
        "Keys that were not used then or later, also those that never were.",
    ),
    _about(
        _parameter("expires_before", _TIME),
        "Keys that expire earlier. A key that does not expire never matches.",
    ),
    _LABELLED,
    *_PAGING,
    description="Sorted by owner, each owner's newest key first. A page may have fewer items than `limit`, even none, and still"
    " a `next_cursor`: continue until this is null.",
)
REVOKE_ANY_KEYS: Final = _operation(
    "Revoke API keys of any owners, for good",
    _success("The revoked keys, and the unknown ids.", _ref("RevokedApiKeys")),
    body=_ref("RevokeApiKeys"),
)
REVOKE_ANY_KEY: Final = _operation(
    "Revoke an API key of any owner, for good",
    _success("The revoked key.", _ref("ApiKey"))
    | {"404": _problem("No API key has this id."), "422": _INVALID},
    _ID,
)
REVOKE_PRESENTED_KEY: Final = _operation(
    "Revoke an API key by showing it",
    _success("If this was a key, it does not work any more.", {"type": "object"})
    | {**_OF_PUBLIC, "503": _problem("Whether it was revoked is not known.", _RETRY)},
    body=_ref("PresentedApiKey"),
    form=_ref("PresentedApiKeyForm"),
    description="For the holder of a key, without a login. The answer is the same whether the key exists or not.",
)
RECEIVE_LEAK_REPORT: Final = _operation(
    "Receive a report of GitHub's secret scanning",
    _success(
        "The matches that are keys of this application, which are revoked.",
        _list_of("LeakLabel"),
    )
    | {
        **_OF_PUBLIC,
        "403": _problem("The report is not signed by GitHub."),
        "503": _problem("The signature cannot be checked, or the keys cannot be revoked.", _RETRY),
    },
    *(
        _parameter(name, _STRING, "header")
        for name in ("Github-Public-Key-Identifier", "Github-Public-Key-Signature")
    ),
    body=_list_of("LeakMatch"),
)


def scheme_name(policies: Iterable[Policy], unsafe: Policy | None = None) -> str:
    """The policies of guards as the name of a security scheme in an incomplete document.

    The name contains the permissions, since not every framework writes the scopes of a scheme into an operation.

    Args:
        policies: The policies, all of which apply.
        unsafe: The policy for unsafe methods. None: the same policies.
    """
    if unsafe is not None:
        return f"{scheme_name(policies)}\n{scheme_name([unsafe])}"
    wanted = tuple(policies)
    permissions = frozenset[str]().union(*(policy.permissions for policy in wanted))
    kind = _KEY if any(policy.key for policy in wanted) else _ANY
    if any(policy.interactive or policy.login for policy in wanted):
        kind = _LOGIN
    return " ".join((kind, *sorted(permissions)))


def complete_document(
    document: Json,
    *,
    errors: Errors,
    login_scheme: str | None = None,
    delegates: bool = False,
    header: str | None = None,
) -> Json:
    """Complete a document: security, answers and schemas of the library. The function is idempotent.

    Every guarded operation gets the answers of its guard, unless the application described its own.

    Args:
        document: The framework's document, with names from :func:`scheme_name` and the operations of the tables.
        errors: With `all` the problem document replaces the framework's schema of validation errors. With `http` the
            answers of the library have the application's format, which is unknown here.
        login_scheme: The application's own security scheme for logins. None: the library adds a scheme.
        delegates: True if the application has a `may_act_for`, so that the key routes take `on_behalf_of`.
        header: The name of the header for a key in place of `Authorization`.

    Raises:
        ConfigurationError: The document does not have this scheme.
    """
    if errors == "all":
        _replace_validation_errors(document)
    components: Json = document.get("components", {})
    schemes: Json = components.get("securitySchemes", {})
    for method, operation in operations(document):
        requirements = cast("list[Json]", operation.get("security", []))
        if any(map(_guards_in, requirements)):
            operation["security"] = _alternatives(
                requirements, schemes, login_scheme, header, method
            )
            responses: Json = operation.get("responses", {})
            # The application's responses count, and stay first.
            operation["responses"] = responses | _REFUSALS | responses
    for name in _guards_in(schemes):
        del schemes[name]
    schemas: Json = components.get("schemas", {})
    left_out: list[object] = [_PROBLEM_CONTENT] if errors == "http" else []
    if not delegates:
        # The list is that of an operation without other parameters.
        left_out += [_DELEGATED, [_DELEGATED]]
    document["paths"] = _finish(document.get("paths", {}), schemas, left_out)
    added = {"schemas": schemas, "securitySchemes": schemes}
    components = components | {name: found for name, found in added.items() if found}
    if components:
        document["components"] = components
    return document


def _guards_in(schemes: Json) -> list[str]:
    """The names from :func:`scheme_name` among the names of schemes."""
    return [name for name in schemes if name.startswith(OWN)]


def _alternatives(
    requirements: list[Json],
    schemes: Json,
    login_scheme: str | None,
    header: str | None,
    method: str,
) -> list[Json]:
    """The requirements of an operation, with guards as alternatives for a reader: a login, a key, or either."""
    theirs = [each for each in requirements if not _guards_in(each)]
    # The last line of a name is for unsafe methods.
    line = 0 if method.upper() in SAFE_METHODS else -1
    names = [name for each in requirements for name in _guards_in(each)]
    guards = [name.splitlines()[line].split() for name in names]
    kinds = {kind for kind, *_ in guards}
    permissions = sorted({each for _, *named in guards for each in named})
    wanted: list[Json]
    if _LOGIN not in kinds and _KEY in kinds:
        wanted = []
    elif login_scheme is None:
        wanted = [{_add(schemes, "Login", _SCHEMES["Login"]): permissions}]
    elif login_scheme in schemes:
        # The scheme's scopes are the application's, not permissions.
        wanted = [{login_scheme: []}]
    else:
        raise ConfigurationError(
            f"The document has no security scheme {login_scheme!r}. Name a scheme of the application in login_scheme:"
            f" {', '.join(sorted(schemes)) or 'there is none'}."
        )
    if _LOGIN not in kinds:
        wanted.append({_add(schemes, "ApiKey", _SCHEMES["ApiKey"]): permissions})
        if header is not None:
            scheme = {"type": "apiKey", "in": "header", "name": header}
            wanted.append({_add(schemes, "ApiKeyHeader", scheme): []})
    return [*theirs, *(each for each in wanted if each not in theirs)]


def _finish(value: object, schemas: Json, left_out: Sequence[object] = ()) -> Any:
    """A copy of a part of a document with the library's parts by their final names.

    Args:
        value: The part.
        schemas: Gets the schemas that the part names.
        left_out: The parts that do not apply to this application.
    """
    if isinstance(value, list):
        items = cast("list[object]", value)
        return [_finish(each, schemas, left_out) for each in items if each not in left_out]
    if not isinstance(value, dict):
        return value
    if value == _DELEGATED:
        return _ON_BEHALF_OF
    members = cast("Json", value)
    target = members.get("$ref")
    if isinstance(target, str) and target.startswith(_REF + OWN):
        name = target.removeprefix(_REF + OWN)
        return {"$ref": _REF + _add(schemas, name, _finish(_SCHEMAS[name], schemas))}
    return {
        name: _finish(member, schemas, left_out)
        for name, member in members.items()
        if member not in left_out
    }


def _add(components: Json, name: str, component: Json) -> str:
    """Add a component, and return its name. The application may have another component with the same name."""
    if components.get(name, component) != component:
        name = f"MskAuth{name}"
    components[name] = component
    return name


def _replace_validation_errors(document: Json) -> None:
    """Describe answers to invalid input as problem documents, for `all`."""
    for _, operation in operations(document):
        responses: Json = operation.get("responses", {})
        for status, theirs in _VALIDATION_ERRORS.items():
            if theirs in str(responses.get(status)):
                del responses[status]
                responses.setdefault("422", _INVALID)
    schemas: Json = document.get("components", {}).get("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        if f"'{_REF}{name}'" not in str(document):
            schemas.pop(name, None)


def operations(document: Json) -> Iterator[tuple[str, Json]]:
    """All operations of a document, with their methods."""
    for path in cast("dict[str, Json]", document.get("paths", {})).values():
        for method, operation in path.items():
            if method in _METHODS:
                yield method, operation
