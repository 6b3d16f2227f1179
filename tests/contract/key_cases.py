"""Who may manage which keys."""

from __future__ import annotations

from collections.abc import Iterator

from .case import JSON, Case, case

MANAGING = (
    "POST /api/keys",
    "POST /api/keys/<key_id>/rotate",
    "POST /api/keys/<key_id>/revoke",
    "DELETE /api/keys/<key_id>",
    "PATCH /api/keys/<key_id>",
)


ACTING = "?on_behalf_of=org%3Aacme"


def key_cases() -> Iterator[Case]:
    """Who may do what with keys (G3; API Security Top 10, API1, API3 and API5)."""
    for request in MANAGING:
        yield case(request, "credentials_missing")
        for credential in ("key", "key_admin", "key_nothing"):
            body = '{"name": "one more"}'
            yield case(request, "interactive_required", credential, headers=JSON, body=body)
        # A misspelt parameter would make a key of another owner. The guard comes first.
        misspelt, new = f"{request}?onbehalfof=org%3Aacme", '{"name": "one more"}'
        yield case(misspelt, "credentials_missing")
        yield case(misspelt, "interactive_required", "key", headers=JSON, body=new)
        fields = ("onbehalfof",)
        yield case(misspelt, "input_invalid", "jwt", headers=JSON, body=new, fields=fields)
    edit = '{"name": "edited"}'
    hostile = ["<id_unknown>", "%", "'; drop table keys --", "\x00", "\xe9", "x" * 5000, "<key>"]
    for request in (*MANAGING[1:], "GET /api/keys/<key_id>"):
        editing = request.startswith("PATCH")
        for credential, key_id in (
            ("jwt_bob", "<key_id>"),
            ("jwt_admin", "<key_id>"),
            *(("jwt", each) for each in hostile),
        ):
            target = request.replace("<key_id>", key_id)
            yield case(
                target,
                "key_not_found",
                credential,
                name=f"{credential} on {target[:30]!r} … {target[-10:]!r} and {len(target)}",
                headers=JSON if editing else (),
                body=edit if editing else "",
            )
    for credential in ("key", "jwt"):
        yield case("GET /api/keys/<key_id>", 200, credential)
    yield case("POST /api/keys", 201, "jwt", headers=JSON, body='{"name":"a"}')
    yield case("POST /api/keys/<key_id>/rotate", 201, "jwt")
    for key in ("key_id", "key_revoked_id"):
        yield case(f"POST /api/keys/<{key}>/revoke", 200, "jwt")
    for key in ("key_id", "key_revoked_id", "key_expired_id"):
        yield case(f"PATCH /api/keys/<{key}>", 200, "jwt", headers=JSON, body=edit)
    yield case("DELETE /api/keys/<key_id>", 204, "jwt")
    for key in ("key_revoked_id", "key_expired_id"):
        yield case(f"POST /api/keys/<{key}>/rotate", "key_not_active", "jwt")
    yield from _service_account_cases()


def _service_account_cases() -> Iterator[Case]:
    """Who may do what with the keys of a service account, whose people the application knows."""
    new = '{"name": "deploy"}'
    one = "/api/keys/<key_acme_id>"
    for method, status in (("GET", 200), ("DELETE", 204)):
        yield case(f"{method} {one}{ACTING}", status, "jwt", headers=JSON)
        # Not for oneself.
        yield case(f"{method} {one}", "key_not_found", "jwt", headers=JSON)
    for action, status in (("rotate", 201), ("revoke", 200)):
        yield case(f"POST {one}/{action}{ACTING}", status, "jwt", headers=JSON)
    # A key that may do more than one may hand out.
    more = f"POST /api/keys/<key_acme_run_id>/rotate{ACTING}"
    yield case(more, "permission_denied", "jwt", needs="tasks:read tasks:run", headers=JSON)
    yield case(f"PATCH {one}{ACTING}", 200, "jwt", headers=JSON, body=new)
    yield case(f"GET /api/keys{ACTING}", 200, "jwt", headers=JSON)
    yield case(f"POST /api/keys{ACTING}", 201, "jwt", headers=JSON, body=new)
    yield case(
        f"POST /api/keys{ACTING}",
        "input_invalid",
        "jwt",
        name="create on behalf with a scope that one may not hand out",
        headers=JSON,
        body='{"name": "deploy", "scopes": ["tasks:run"]}',
        fields=("scopes",),
    )
    for request in (*MANAGING, "GET /api/keys", "GET /api/keys/<key_id>"):
        target = f"{request.replace('<key_id>', '<key_acme_id>')}{ACTING}"
        body = new if request in {"POST /api/keys", "PATCH /api/keys/<key_id>"} else ""
        # A key of the account itself.
        yield case(target, "interactive_required", "key_acme", headers=JSON, body=body)
        for credential, owner in (
            ("jwt_bob", "org%3Aacme"),
            ("jwt_admin", "org%3Aacme"),
            ("jwt", "org%3Anone"),
            ("jwt", "bob"),
            ("jwt", "alice"),
            ("jwt", ""),
            ("jwt", "%00"),
        ):
            wanted = target.replace("org%3Aacme", owner)
            yield case(wanted, "permission_denied", credential, headers=JSON, body=body)
    yield case(
        f"GET {one}{ACTING}&on_behalf_of=alice",
        "input_invalid",
        "jwt",
        headers=JSON,
        fields=("on_behalf_of",),
    )
