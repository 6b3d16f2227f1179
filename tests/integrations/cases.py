"""Requests and their answers, the same for every adapter.

`<name>` in a request stands for a credential or an id of the world. Several of them on one line of
the tables below are as many cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

JSON = (("content-type", "application/json"),)

MISSING = 'Bearer realm="api"'
MALFORMED = 'Bearer realm="api", error="invalid_request"'
TOKEN = 'Bearer realm="api", error="invalid_token"'
INTERACTIVE = 'Bearer realm="api", error="insufficient_user_authentication"'
TOO_OLD = 'Bearer realm="api", error="insufficient_user_authentication", max_age="900"'


def scope(permissions: str) -> str:
    return f'Bearer realm="api", error="insufficient_scope", scope="{permissions}"'


@dataclass(frozen=True)
class Case:
    """One request and what has to come back.

    Attributes:
        name: A short sentence.
        request: Method and target.
        headers: As sent, in this order, repeated ones included.
        body: As sent.
        status: The expected status.
        code: The expected problem; None expects success.
        challenge: The exact `WWW-Authenticate`.
        retry_after: The exact `Retry-After`.
        fields: With `input_invalid`, the members that are named.
    """

    name: str
    request: str
    status: int
    code: str | None = None
    challenge: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: str = ""
    retry_after: str | None = None
    fields: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return self.name


def _with(credential: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer <{credential}>"),)


def _answers() -> Iterator[Case]:
    """The table of answers, row by row (ASVS 5.0 9.1, 10.3; RFC 6750, section 3; RFC 9470)."""
    refused = [
        ("key_typo", "key_malformed"),
        ("key_checksum", "key_malformed"),
        ("key_unknown", "key_unknown"),
        ("key_wrong", "key_unknown"),
        ("key_revoked", "key_revoked"),
        ("key_expired", "key_expired"),
        ("key_disabled", "owner_disabled"),
        ("key_orphan", "owner_disabled"),
        ("jwt_forged", "token_invalid"),
        ("jwt_without_session", "token_invalid"),
        ("jwt_expired", "token_expired"),
        ("jwt_ended", "token_revoked"),
        ("jwt_of_another", "token_revoked"),
        ("jwt_disabled", "token_revoked"),
        ("jwt_gone", "token_revoked"),
    ]
    for request in ("GET /me", "POST /tasks/run", "GET /admin/config", "GET /api/keys"):
        yield Case(f"nothing on {request}", request, 401, "credentials_missing", MISSING)
        for credential, code in refused:
            name = f"{credential} on {request}"
            yield Case(name, request, 401, code, TOKEN, _with(credential))
    for credential in ("key", "jwt"):
        for request in ("GET /me", "GET /tasks", "POST /tasks/run", "GET /both", "GET /api/keys"):
            yield Case(f"{credential} on {request}", request, 200, headers=_with(credential))
    yield Case("a scoped key within its scopes", "GET /tasks", 200, headers=_with("key_read"))
    for credential in ("key_read", "key_nothing", "jwt_bob", "key_bob"):
        yield Case(
            f"{credential} lacks tasks:run",
            "POST /tasks/run",
            403,
            "permission_denied",
            scope("tasks:run"),
            _with(credential),
        )
    yield Case(
        "a key without scopes may still say who it is", "GET /me", 200, headers=_with("key_nothing")
    )
    for request in ("GET /admin/config", "PATCH /admin/config", "POST /fresh"):
        for credential in ("key", "key_admin", "key_nothing"):
            yield Case(
                f"{credential} on {request}",
                request,
                403,
                "interactive_required",
                INTERACTIVE,
                _with(credential),
            )
    yield Case("an administrator's login", "PATCH /admin/config", 200, headers=_with("jwt_admin"))
    yield Case(
        "a login without the permission",
        "GET /admin/config",
        403,
        "permission_denied",
        scope("admin:config"),
        _with("jwt"),
    )
    yield Case("a fresh login", "POST /fresh", 200, headers=_with("jwt"))
    yield Case("a login just fresh enough", "POST /fresh", 200, headers=_with("jwt_just"))
    yield Case("a login too old", "POST /fresh", 401, "login_too_old", TOO_OLD, _with("jwt_old"))
    yield Case("not there", "GET /missing", 404, "task_not_found", headers=_with("jwt"))
    yield Case("too many attempts", "GET /busy", 429, "too_many_attempts", retry_after="30")
    yield Case("no such path", "GET /nowhere", 404, "not_found")
    yield Case("no such method", "PUT /me", 405, "method_not_allowed")
    yield Case("nobody expected this", "GET /boom", 500, "internal_error")
    yield Case("public", "GET /public", 200)
    yield Case("public, whatever is sent", "GET /public", 200, headers=_with("key_revoked"))


def _headers() -> Iterator[Case]:
    """The header's grammar, byte by byte (RFC 9110, sections 5.5 and 11; RFC 6750, section 2.1)."""
    fine = [
        "Bearer <key>", "bearer <key>", "BEARER <key>", "bEaReR <key>", "Bearer  <key>",
        "Bearer      <key>", "  Bearer <key>", "Bearer <key>  ", "\tBearer <key>\t", "Bearer <jwt>",
    ]  # fmt: skip
    for value in fine:
        name = f"accepted: {value!r}"
        yield Case(name, "GET /me", 200, headers=(("authorization", value),))
    missing = ["", " ", "Basic YTpi", "Digest <key>", "<key>", "Token <key>"]
    for value in missing:
        name = f"no credentials of ours: {value!r}"
        yield Case(
            name, "GET /me", 401, "credentials_missing", MISSING, (("authorization", value),)
        )
    broken = [
        "Bearer", "Bearer ", "Bearer\t<key>", "Bearer <key> <key>", "Bearer <key>, Bearer <key>",
        "Bearer <key>,", "Basic <key>, Bearer <key>", "Bearer <key>;", 'Bearer "<key>"', "Bearer: <key>", "Bearer=<key>",
        "Bearer <key>\x00", "Bearer \x00<key>", "Bearer <key>\r\nX: 1", "Bearer <key>\n", "Bearer <key>\x7f",
        "Bearer <key>\xa0", "Bearer\xa0<key>", "B\xe9arer <key>", "Bearer <key>\xff", "Bearer =<key>",
        "Bearer <key>\x0b", "Bearer\x0c<key>", "Bearer <key>?", "Bearer <key>%00", "Bearer msk_%", "Bearer " + "a" * 8186,
        "Bearer " + " " * 8186 + "<key>", "a" * 100_000,
    ]  # fmt: skip
    for value in broken:
        name = f"malformed: {value[:40]!r}" + (f" and {len(value)}" if len(value) > 40 else "")
        yield Case(
            name, "GET /me", 400, "request_malformed", MALFORMED, (("authorization", value),)
        )
    keys = [
        "Bearer a", "Bearer <key>x", "Bearer x<key>", "Bearer <key>=", "Bearer MSK_<key>", "Bearer msk_",
        "Bearer <key_id>", "Bearer msk_____________________________________________________",
        "Bearer " + "msk_" * 2000, "Bearer <key>~", "Bearer msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9P",
    ]  # fmt: skip
    for value in keys:
        name = f"no key: {value[:60]!r}"
        yield Case(name, "GET /me", 401, "key_malformed", TOKEN, (("authorization", value),))
    tokens = [
        "Bearer .",
        "Bearer ..",
        "Bearer a.b.c",
        "Bearer <jwt>.",
        "Bearer <jwt>.x",
        "Bearer .<jwt>",
        "Bearer <jwt>A",
    ]
    for value in tokens:
        yield Case(
            f"no token: {value!r}",
            "GET /me",
            401,
            "token_invalid",
            TOKEN,
            (("authorization", value),),
        )
    one = ("authorization", "Bearer <key>")
    several = {
        "twice the same": (one, one),
        "a key and a login": (one, ("authorization", "Bearer <jwt>")),
        "a key and an empty one": (one, ("authorization", "")),
        "another scheme first": (("authorization", "Basic YTpi"), one),
        "in two spellings": (("Authorization", "Bearer <key>"), one),
        "far apart": (one, ("x-other", "1"), one),
    }
    for name, headers in several.items():
        yield Case(
            f"several headers: {name}", "GET /me", 400, "request_malformed", MALFORMED, headers
        )
    yield Case("its name in capitals", "GET /me", 200, headers=(("AUTHORIZATION", "Bearer <key>"),))
    elsewhere = {
        "a cookie": (("cookie", "authorization=<key>; access_token=<jwt>; session=<jwt>"),),
        "X-API-Key": (("x-api-key", "<key>"),),
        "Proxy-Authorization": (("proxy-authorization", "Bearer <key>"),),
        "a look-alike name": (
            ("authorization_", "Bearer <key>"),
            ("x-authorization", "Bearer <key>"),
        ),
    }
    for place, headers in elsewhere.items():
        yield Case(
            f"credentials in {place}", "GET /me", 401, "credentials_missing", MISSING, headers
        )
    for query in (
        "access_token=<jwt>",
        "api_key=<key>",
        "key=<key>",
        "Authorization=Bearer%20<key>",
    ):
        request = f"GET /me?{query}"
        yield Case(f"credentials in ?{query}", request, 401, "credentials_missing", MISSING)
    form = (("content-type", "application/x-www-form-urlencoded"),)
    yield Case(
        "credentials in a form",
        "POST /tasks/run",
        401,
        "credentials_missing",
        MISSING,
        form,
        "access_token=<jwt>",
    )
    override = (*_with("key"), ("x-http-method-override", "GET"), ("x-method-override", "GET"))
    yield Case(
        "a method override",
        "PATCH /admin/config",
        403,
        "interactive_required",
        INTERACTIVE,
        override,
    )


MANAGING = (
    "POST /api/keys",
    "POST /api/keys/<key_id>/rotate",
    "POST /api/keys/<key_id>/revoke",
    "DELETE /api/keys/<key_id>",
)


def _key_routes() -> Iterator[Case]:
    """Who may do what with keys (G3; API Security Top 10, API1, API3 and API5)."""
    for request in MANAGING:
        yield Case(f"nothing on {request}", request, 401, "credentials_missing", MISSING)
        for credential in ("key", "key_admin", "key_nothing"):
            yield Case(
                f"{credential} on {request}",
                request,
                403,
                "interactive_required",
                INTERACTIVE,
                (*_with(credential), *JSON),
                '{"name": "one more"}',
            )
    for request in (*MANAGING[1:], "GET /api/keys/<key_id>"):
        for credential, target in (
            ("jwt_bob", request),
            ("jwt_admin", request),
            ("jwt", request.replace("<key_id>", "<id_unknown>")),
            ("jwt", request.replace("<key_id>", "%")),
            ("jwt", request.replace("<key_id>", "'; drop table keys --")),
            ("jwt", request.replace("<key_id>", "\x00")),
            ("jwt", request.replace("<key_id>", "\xe9")),
            ("jwt", request.replace("<key_id>", "x" * 5000)),
            ("jwt", request.replace("<key_id>", "<key>")),
        ):
            name = f"{credential} on {target[:30]!r} … {target[-10:]!r} and {len(target)}"
            yield Case(name, target, 404, "key_not_found", headers=_with(credential))
    for credential in ("key", "jwt"):
        yield Case(
            f"{credential} on one key", "GET /api/keys/<key_id>", 200, headers=_with(credential)
        )
    yield Case("create", "POST /api/keys", 201, headers=(*_with("jwt"), *JSON), body='{"name":"a"}')
    yield Case("rotate", "POST /api/keys/<key_id>/rotate", 201, headers=_with("jwt"))
    yield Case("revoke", "POST /api/keys/<key_id>/revoke", 200, headers=_with("jwt"))
    yield Case("revoke again", "POST /api/keys/<key_revoked_id>/revoke", 200, headers=_with("jwt"))
    yield Case("delete", "DELETE /api/keys/<key_id>", 204, headers=_with("jwt"))
    for key in ("key_revoked_id", "key_expired_id"):
        yield Case(
            f"rotate <{key}>",
            f"POST /api/keys/<{key}>/rotate",
            409,
            "key_not_active",
            headers=_with("jwt"),
        )


def _bodies() -> Iterator[Case]:
    """What is not acceptable in a body or a query (ASVS 5.0 2.2 and 4.1; API3: mass assignment)."""

    def create(body: str | dict[str, Any], *fields: str, content: tuple[Any, ...] = JSON) -> Case:
        text = body if isinstance(body, str) else json.dumps(body)
        name = f"create {text[:70]!r} and {len(text)} {content}"
        headers = (*_with("jwt"), *content)
        return Case(
            name, "POST /api/keys", 422, "input_invalid", None, headers, text, fields=fields
        )

    for text in (
        "", " ", "null", "[]", '"name"', "1", "true", "{", "{]", '{"name": "a"', '{"name": "a"}}', "{'name': 'a'}",
        '{"name": "a", "name": "b"}', '{"name": NaN}', '{"name": Infinity}', '{"name": "a\x00"}', '{"name": "\xff"}',
        '{"name": ' + "9" * 5000 + "}", "[" * 30_000, '{"a":' * 10_000, "\xef\xbb\xbf{}", '{"name": "a"}\x00',
    ):  # fmt: skip
        yield create(text, "")
    yield create({}, "name")
    for name in (
        None,
        1,
        True,
        [],
        {},
        "",
        "   ",
        "a" * 101,
        "a\x00b",
        "a\nb",
        "\ud800",
        "\u202ea",
    ):
        yield create({"name": name}, "name")
    for scopes in ("tasks:read", 1, {}, [1], [None], [["tasks:read"]], ["admin:config"], ["tasks:read", "x"],
                   [""], ["\x00"], [str(n) for n in range(101)]):  # fmt: skip
        yield create({"name": "a", "scopes": scopes}, "scopes")
    for days in (0, -1, 1.5, 1.0, "1", True, [], {}, 36_501, 10**30, -(10**30)):
        yield create({"name": "a", "expires_in_days": days}, "expires_in_days")
    yield create('{"name": "a", "expires_in_days": 1e999}', "expires_in_days")
    for member in (
        "owner_id",
        "id",
        "digest",
        "key",
        "revoked_at",
        "last_used_at",
        "Name",
        "__class__",
    ):
        yield create({"name": "a", member: "bob"}, member)
    yield create({"name": "a", "x" * 200: 1}, "")
    yield create(
        {"owner_id": "bob", "scopes": 1, "expires_in_days": 0},
        "owner_id",
        "name",
        "scopes",
        "expires_in_days",
    )
    for content_type in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonx",
        "x",
        "",
    ):
        yield create('{"name": "a"}', "", content=(("content-type", content_type),))
    yield create('{"name": "a"}', "", content=())

    for body in ("[]", "{", '{"overlap_seconds": "1"}', '{"overlap_seconds": -1}', '{"overlap_seconds": null}',
                 '{"overlap_seconds": 7776001}', '{"overlap_seconds": 1e3}', '{"overlap_seconds": true}',
                 '{"seconds": 1}'):  # fmt: skip
        field = "overlap_seconds" if "overlap" in body else "seconds" if "seconds" in body else ""
        yield Case(
            f"rotate {body!r}",
            "POST /api/keys/<key_id>/rotate",
            422,
            "input_invalid",
            None,
            (*_with("jwt"), *JSON),
            body,
            fields=(field,),
        )
    for body in ("{}", '{"overlap_seconds": 0}', '{"overlap_seconds": 7776000}'):
        yield Case(
            f"rotate {body!r}",
            "POST /api/keys/<key_id>/rotate",
            201,
            headers=(*_with("jwt"), ("content-type", "Application/JSON; charset=utf-8")),
            body=body,
        )
    for query, field in (
        ("limit=0", "limit"), ("limit=201", "limit"), ("limit=-1", "limit"), ("limit=a", "limit"), ("limit=", "limit"),
        ("limit=1e1", "limit"), ("limit=%31%00", "limit"), ("limit=" + "9" * 5000, "limit"), ("limit=1&limit=2", "limit"),
        ("status=dead", "status"), ("status=", "status"), ("status=ACTIVE", "status"), ("cursor=", "cursor"),
        ("status=active&status=active", "status"), ("cursor=x", "cursor"), ("cursor=%00", "cursor"),
        ("cursor=" + "A" * 9000, "cursor"), ("&".join(["x=1"] * 101), ""),
    ):  # fmt: skip
        yield Case(
            f"list ?{query[:40]} ({len(query)})",
            f"GET /api/keys?{query}",
            422,
            "input_invalid",
            headers=_with("jwt"),
            fields=(field,),
        )
    for query in (
        "limit=1",
        "limit=200",
        "status=revoked&limit=5",
        "sort=name&owner_id=bob",
        "",
        "&&&",
        "x=%ff%zz",
    ):
        yield Case(f"list ?{query}", f"GET /api/keys?{query}", 200, headers=_with("jwt"))
    yield Case(
        "a body of 65,537 bytes",
        "POST /api/keys",
        413,
        "content_too_large",
        headers=(*_with("jwt"), *JSON),
        body=" " * 65_537,
    )
    yield Case(
        "a large body of somebody who may not",
        "POST /api/keys",
        401,
        "credentials_missing",
        MISSING,
        JSON,
        " " * 65_537,
    )


CASES = [*_answers(), *_headers(), *_key_routes(), *_bodies()]
