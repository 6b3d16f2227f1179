"""What every kind of credential may do on every kind of route."""

from __future__ import annotations

from collections.abc import Iterator

from .case import Case, case


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
        yield case(request, "credentials_missing")
        for credential, code in refused:
            yield case(request, code, credential)
    for credential in ("key", "jwt"):
        for request in ("GET /me", "GET /tasks", "POST /tasks/run", "GET /both", "GET /api/keys"):
            yield case(request, 200, credential)
    yield case("GET /tasks", 200, "key_read", name="a scoped key within its scopes")
    for credential in ("key_read", "key_nothing", "jwt_bob", "key_bob"):
        yield case("POST /tasks/run", "permission_denied", credential, needs="tasks:run")
    for credential in ("key_read", "key_nothing"):
        # It may still say who it is; where no permission is named, none of its scopes is enough.
        for request in ("GET /whoami", "GET /api/keys"):
            yield case(request, 200, credential)
        yield case("GET /me", "permission_denied", credential)
    # A bare guard beside one that names a permission.
    yield case("GET /beside", 200, "key_read")
    yield case("GET /beside", "permission_denied", "key_nothing", needs="tasks:read")
    for credential in ("jwt", "key", "key_bound", "key_read"):
        yield case("GET /about/42", 200, credential)
    yield case("GET /whoami", 200, "key_bound")
    # Another resource, one that looks like it, and operations that name none.
    for target in ("43", "420", "%2A", "task:42"):
        yield case(f"GET /about/{target}", "permission_denied", "key_bound")
    for request in ("GET /tasks", "POST /tasks/run", "GET /me", "GET /key", "GET /both"):
        yield case(request, "permission_denied", "key_bound")
    for request in ("GET /admin/config", "PATCH /admin/config", "POST /fresh"):
        for credential in ("key", "key_admin", "key_nothing"):
            yield case(request, "interactive_required", credential)
    yield case("PATCH /admin/config", 200, "jwt_admin")
    yield case("GET /admin/config", "permission_denied", "jwt", needs="admin:config")
    for credential in ("jwt", "jwt_just"):
        yield case("POST /fresh", 200, credential)
    yield case("POST /fresh", "login_too_old", "jwt_old")
    yield case("GET /login", 200, "jwt")
    for credential in ("key", "key_read"):
        yield case("GET /login", "interactive_required", credential)
    yield case("GET /login", "credentials_missing")
    for request in ("GET /key", "POST /hook"):
        yield case(request, 200, "key")
        for credential in ("jwt", "jwt_admin", "jwt_bob"):
            yield case(request, "key_required", credential)
        yield case(request, "credentials_missing")
        yield case(request, "key_revoked", "key_revoked")
    for credential in ("key_read", "key_nothing"):
        yield case("GET /key", "permission_denied", credential)
        yield case("POST /hook", "permission_denied", credential, needs="tasks:run")
    spoofed = [
        (),
        (("x-forwarded-for", "2001:db8:77::1"),),
        (("forwarded", 'for="[2001:db8:77::1]"'), ("x-real-ip", "2001:db8:77::1")),
    ]
    for request in ("GET /me", "POST /tasks/run", "GET /admin/config", "GET /api/keys", "GET /key"):
        for headers in spoofed:
            name = f"a key from outside of its networks on {request} with {headers}"
            yield case(request, "address_not_allowed", "key_elsewhere", name=name, headers=headers)
    yield case("GET /missing", "task_not_found", "jwt")
    yield case("GET /busy", "too_many_attempts", retry_after="30")
    yield case("GET /public", 200)
    yield case("GET /public", 200, "key_revoked")
