"""Who may manage which keys."""

from __future__ import annotations

from collections.abc import Iterator

from ._adapter_contract_case import INTERACTIVE, JSON, MISSING, Case, bearer

MANAGING = (
    "POST /api/keys",
    "POST /api/keys/<key_id>/rotate",
    "POST /api/keys/<key_id>/revoke",
    "DELETE /api/keys/<key_id>",
)


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
            yield Case(name, target, 404, "key_not_found", headers=bearer(credential))
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
    yield Case("delete", "DELETE /api/keys/<key_id>", 204, headers=bearer("jwt"))
    for key in ("key_revoked_id", "key_expired_id"):
        yield Case(
            f"rotate <{key}>",
            f"POST /api/keys/<{key}>/rotate",
            409,
            "key_not_active",
            headers=bearer("jwt"),
        )
