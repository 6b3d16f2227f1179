"""Who may manage which keys."""

from __future__ import annotations

from collections.abc import Iterator

from .case import BARE, INTERACTIVE, JSON, MISSING, Case, bearer, scope

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
        yield Case(f"nothing on {request}", request, 401, "credentials_missing", MISSING)
        for credential in ("key", "key_admin", "key_nothing"):
            yield Case(
                f"{credential} on {request}",
                request,
                403,
                "interactive_required",
                INTERACTIVE,
                (*bearer(credential), *JSON),
                '{"name": "one more"}',
            )
    edit = '{"name": "edited"}'
    for request in (*MANAGING[1:], "GET /api/keys/<key_id>"):
        editing = request.startswith("PATCH")
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
            headers = (*bearer(credential), *JSON) if editing else bearer(credential)
            body = edit if editing else ""
            yield Case(name, target, 404, "key_not_found", headers=headers, body=body)
    for credential in ("key", "jwt"):
        yield Case(
            f"{credential} on one key", "GET /api/keys/<key_id>", 200, headers=bearer(credential)
        )
    yield Case(
        "create", "POST /api/keys", 201, headers=(*bearer("jwt"), *JSON), body='{"name":"a"}'
    )
    yield Case("rotate", "POST /api/keys/<key_id>/rotate", 201, headers=bearer("jwt"))
    yield Case("revoke", "POST /api/keys/<key_id>/revoke", 200, headers=bearer("jwt"))
    yield Case("revoke again", "POST /api/keys/<key_revoked_id>/revoke", 200, headers=bearer("jwt"))
    for key in ("key_id", "key_revoked_id", "key_expired_id"):
        name = f"edit <{key}>"
        headers = (*bearer("jwt"), *JSON)
        yield Case(name, f"PATCH /api/keys/<{key}>", 200, headers=headers, body=edit)
    yield Case("delete", "DELETE /api/keys/<key_id>", 204, headers=bearer("jwt"))
    for key in ("key_revoked_id", "key_expired_id"):
        yield Case(
            f"rotate <{key}>",
            f"POST /api/keys/<{key}>/rotate",
            409,
            "key_not_active",
            headers=bearer("jwt"),
        )
    yield from _service_account_cases()


def _service_account_cases() -> Iterator[Case]:
    """Who may do what with the keys of a service account, whose people the application knows."""
    alice = (*bearer("jwt"), *JSON)
    new = '{"name": "deploy"}'
    one = f"/api/keys/<key_acme_id>{ACTING}"
    for method, status in (("GET", 200), ("DELETE", 204)):
        yield Case(f"{method} on behalf", f"{method} {one}", status, headers=alice)
        yield Case(
            f"{method} of an account's key for oneself",
            f"{method} /api/keys/<key_acme_id>",
            404,
            "key_not_found",
            headers=alice,
        )
    for action, status in (("rotate", 201), ("revoke", 200)):
        target = f"POST /api/keys/<key_acme_id>/{action}{ACTING}"
        yield Case(f"{action} on behalf", target, status, headers=alice)
    yield Case(
        "rotate on behalf a key that may do more than one may hand out",
        f"POST /api/keys/<key_acme_run_id>/rotate{ACTING}",
        403,
        "permission_denied",
        scope("tasks:read tasks:run"),
        alice,
    )
    yield Case("edit on behalf", f"PATCH {one}", 200, headers=alice, body=new)
    yield Case("list on behalf", f"GET /api/keys{ACTING}", 200, headers=alice)
    yield Case("create on behalf", f"POST /api/keys{ACTING}", 201, headers=alice, body=new)
    yield Case(
        "create on behalf with a scope that one may not hand out",
        f"POST /api/keys{ACTING}",
        422,
        "input_invalid",
        headers=alice,
        body='{"name": "deploy", "scopes": ["tasks:run"]}',
        fields=("scopes",),
    )
    for request in (*MANAGING, "GET /api/keys", "GET /api/keys/<key_id>"):
        target = f"{request.replace('<key_id>', '<key_acme_id>')}{ACTING}"
        body = new if request in {"POST /api/keys", "PATCH /api/keys/<key_id>"} else ""
        yield Case(
            f"a key of the account itself on {target}",
            target,
            403,
            "interactive_required",
            INTERACTIVE,
            (*bearer("key_acme"), *JSON),
            body,
        )
        for credential, wanted in (
            ("jwt_bob", target),
            ("jwt_admin", target),
            ("jwt", target.replace("acme", "none")),
            ("jwt", target.replace("org%3Aacme", "bob")),
            ("jwt", target.replace("org%3Aacme", "alice")),
            ("jwt", target.replace("org%3Aacme", "")),
            ("jwt", target.replace("org%3Aacme", "%00")),
        ):
            yield Case(
                f"{credential} on {wanted}",
                wanted.replace("<key_none_id>", "<key_acme_id>"),
                403,
                "permission_denied",
                BARE,
                (*bearer(credential), *JSON),
                body,
            )
    yield Case(
        "on behalf of two owners",
        f"GET /api/keys/<key_acme_id>{ACTING}&on_behalf_of=alice",
        422,
        "input_invalid",
        headers=alice,
        fields=("on_behalf_of",),
    )
