"""What every kind of credential may do on every kind of route."""

from __future__ import annotations

from collections.abc import Iterator

from .case import BARE, INTERACTIVE, MISSING, TOKEN, TOO_OLD, Case, bearer, scope


def answer_cases() -> Iterator[Case]:
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
            yield Case(name, request, 401, code, TOKEN, bearer(credential))
    for credential in ("key", "jwt"):
        for request in ("GET /me", "GET /tasks", "POST /tasks/run", "GET /both", "GET /api/keys"):
            yield Case(f"{credential} on {request}", request, 200, headers=bearer(credential))
    yield Case("a scoped key within its scopes", "GET /tasks", 200, headers=bearer("key_read"))
    for credential in ("key_read", "key_nothing", "jwt_bob", "key_bob"):
        yield Case(
            f"{credential} lacks tasks:run",
            "POST /tasks/run",
            403,
            "permission_denied",
            scope("tasks:run"),
            bearer(credential),
        )
    for credential in ("key_read", "key_nothing"):
        for request in ("GET /whoami", "GET /api/keys"):
            name = f"{credential} may still say who it is, on {request}"
            yield Case(name, request, 200, headers=bearer(credential))
        yield Case(
            f"{credential} has scopes, and no permission is named",
            "GET /me",
            403,
            "permission_denied",
            BARE,
            bearer(credential),
        )
    yield Case(
        "a bare guard beside one that names a permission",
        "GET /beside",
        200,
        headers=bearer("key_read"),
    )
    yield Case(
        "a bare guard beside one whose permission is missing",
        "GET /beside",
        403,
        "permission_denied",
        scope("tasks:read"),
        bearer("key_nothing"),
    )
    for credential in ("jwt", "key", "key_bound", "key_read"):
        request = "GET /about/42"
        yield Case(f"{credential} on {request}", request, 200, headers=bearer(credential))
    yield Case("a bound key on what is any key's", "GET /whoami", 200, headers=bearer("key_bound"))
    # Another resource, one that looks like it, and operations that name none.
    for request in (
        "GET /about/43",
        "GET /about/420",
        "GET /about/%2A",
        "GET /about/task:42",
        "GET /tasks",
        "POST /tasks/run",
        "GET /me",
        "GET /key",
        "GET /both",
    ):
        yield Case(
            f"a key bound to task:42 on {request}",
            request,
            403,
            "permission_denied",
            BARE,
            bearer("key_bound"),
        )
    for request in ("GET /admin/config", "PATCH /admin/config", "POST /fresh"):
        for credential in ("key", "key_admin", "key_nothing"):
            yield Case(
                f"{credential} on {request}",
                request,
                403,
                "interactive_required",
                INTERACTIVE,
                bearer(credential),
            )
    yield Case("an administrator's login", "PATCH /admin/config", 200, headers=bearer("jwt_admin"))
    yield Case(
        "a login without the permission",
        "GET /admin/config",
        403,
        "permission_denied",
        scope("admin:config"),
        bearer("jwt"),
    )
    yield Case("a fresh login", "POST /fresh", 200, headers=bearer("jwt"))
    yield Case("a login just fresh enough", "POST /fresh", 200, headers=bearer("jwt_just"))
    yield Case("a login too old", "POST /fresh", 401, "login_too_old", TOO_OLD, bearer("jwt_old"))
    yield Case("a login where any login will do", "GET /login", 200, headers=bearer("jwt"))
    for credential in ("key", "key_read"):
        name = f"{credential} where any login will do"
        yield Case(name, "GET /login", 403, "interactive_required", INTERACTIVE, bearer(credential))
    yield Case("nothing where a login is due", "GET /login", 401, "credentials_missing", MISSING)
    for request in ("GET /key", "POST /hook"):
        yield Case(f"a key on {request}", request, 200, headers=bearer("key"))
        for credential in ("jwt", "jwt_admin", "jwt_bob"):
            name = f"{credential} on {request}"
            yield Case(name, request, 403, "key_required", headers=bearer(credential))
        yield Case(f"nothing on {request}", request, 401, "credentials_missing", MISSING)
        yield Case(
            f"a revoked key on {request}",
            request,
            401,
            "key_revoked",
            TOKEN,
            bearer("key_revoked"),
        )
    for credential in ("key_read", "key_nothing"):
        for request, challenge in (("GET /key", BARE), ("POST /hook", scope("tasks:run"))):
            yield Case(
                f"{credential} on {request}",
                request,
                403,
                "permission_denied",
                challenge,
                bearer(credential),
            )
    spoofed = [
        (),
        (("x-forwarded-for", "2001:db8:77::1"),),
        (("forwarded", 'for="[2001:db8:77::1]"'), ("x-real-ip", "2001:db8:77::1")),
    ]
    for request in ("GET /me", "POST /tasks/run", "GET /admin/config", "GET /api/keys", "GET /key"):
        for headers in spoofed:
            yield Case(
                f"a key from outside of its networks on {request} with {headers}",
                request,
                403,
                "address_not_allowed",
                headers=(*bearer("key_elsewhere"), *headers),
            )
    yield Case("not there", "GET /missing", 404, "task_not_found", headers=bearer("jwt"))
    yield Case("too many attempts", "GET /busy", 429, "too_many_attempts", retry_after="30")
    yield Case("public", "GET /public", 200)
    yield Case("public, whatever is sent", "GET /public", 200, headers=bearer("key_revoked"))
