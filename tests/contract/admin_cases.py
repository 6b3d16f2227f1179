"""Who may list and revoke the keys of all owners, and with which queries and bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .case import INTERACTIVE, JSON, MISSING, TOO_OLD, Case, bearer, scope

LIST = "GET /api/admin/keys"
REVOKE_MANY = "POST /api/admin/keys/revoke"
REVOKE_ONE = "POST /api/admin/keys/<key_bob_id>/revoke"

SOME = '{"ids": ["<key_bob_id>", "<key_id>", "<id_unknown>"]}'


def admin_cases() -> Iterator[Case]:
    """The key routes for administrators (G3; API Security Top 10, API1 and API5)."""
    for request in (LIST, REVOKE_MANY, REVOKE_ONE):
        body = SOME if request == REVOKE_MANY else ""
        yield Case(f"nothing on {request}", request, 401, "credentials_missing", MISSING)
        yield Case(
            f"an administrator on {request}",
            request,
            200,
            headers=(*bearer("jwt_admin"), *JSON),
            body=body,
        )
        for credentials, status, code, challenge in (
            (("key", "key_admin", "key_nothing"), 403, "interactive_required", INTERACTIVE),
            (("jwt", "jwt_bob"), 403, "permission_denied", scope("admin:config")),
            (("jwt_admin_old",), 401, "login_too_old", TOO_OLD),
        ):
            for credential in credentials:
                yield Case(
                    f"{credential} on {request}",
                    request,
                    status,
                    code,
                    challenge,
                    (*bearer(credential), *JSON),
                    body,
                )
    for key_id in (
        "<id_unknown>",
        "%",
        "'; drop table keys --",
        "\x00",
        "\xe9",
        "x" * 5000,
        "<key>",
    ):
        yield Case(
            f"revoke any {key_id[:20]!r}",
            REVOKE_ONE.replace("<key_bob_id>", key_id),
            404,
            "key_not_found",
            headers=bearer("jwt_admin"),
        )
    yield from _input_cases()


def _input_cases() -> Iterator[Case]:
    moment = "2026-01-02T03:04:05"
    for query, fields in (
        ("limit=0", ("limit",)),
        ("limit=201", ("limit",)),
        ("limit=a&status=dead&unused_since=x", ("status", "limit", "unused_since")),
        ("owner_id=", ("owner_id",)),
        ("owner_id=%00", ("owner_id",)),
        ("owner_id=bob&owner_id=alice", ("owner_id",)),
        ("owner_id=" + "a" * 300, ("owner_id",)),
        ("label=A", ("label",)),
        ("cursor=x", ("cursor",)),
        ("cursor=", ("cursor",)),
        (f"created_before={moment}", ("created_before",)),
        (f"created_before={moment[:10]}", ("created_before",)),
        (f"expires_before={moment}+01:00", ("expires_before",)),
        ("expires_before=2026-02-30T00:00:00Z", ("expires_before",)),
        ("unused_since=1767323045", ("unused_since",)),
        ("unused_since=" + "9" * 5000, ("unused_since",)),
        ("&".join(["x=1"] * 101), ("",)),
    ):
        yield Case(
            f"list all ?{query[:50]} ({len(query)})",
            f"{LIST}?{query}",
            422,
            "input_invalid",
            headers=bearer("jwt_admin"),
            fields=fields,
        )
    for query in (
        "owner_id=bob&status=active&limit=200",
        "owner_id=org%3Aacme&label=env:prod",
        "owner_id=unknown",
        f"created_before={moment}Z&unused_since={moment.lower()}z&expires_before={moment}.5%2B01:00",
        "created_before=0001-01-01T00:00:00%2B14:00&expires_before=9999-12-31T23:59:59-14:00",
        "sort=name",
    ):
        yield Case(f"list all ?{query}", f"{LIST}?{query}", 200, headers=bearer("jwt_admin"))
    for body, field in (
        ("", ""),
        ("[]", ""),
        ("{}", "ids"),
        ('{"ids": null}', "ids"),
        ('{"ids": "<key_id>"}', "ids"),
        ('{"ids": [1]}', "ids"),
        ('{"ids": [["<key_id>"]]}', "ids"),
        ('{"ids": []}', "ids"),
        (json.dumps({"ids": [str(number) for number in range(201)]}), "ids"),
        (json.dumps({"ids": ["<key_id>"] * 201}), "ids"),
        ('{"ids": ["<key_id>"], "owner_id": "bob"}', "owner_id"),
    ):
        yield Case(
            f"revoke any {body[:40]!r} and {len(body)}",
            REVOKE_MANY,
            422,
            "input_invalid",
            headers=(*bearer("jwt_admin"), *JSON),
            body=body,
            fields=(field,),
        )
    for body in ('{"ids": ["", "\x7f", "\xc3\xa9", "<key_id>", "<key_id>"]}', SOME):
        yield Case(
            f"revoke any {body[:40]!r}",
            REVOKE_MANY,
            200,
            headers=(*bearer("jwt_admin"), *JSON),
            body=body,
        )
    yield Case(
        "revoke any with a body of 65,537 bytes",
        REVOKE_MANY,
        413,
        "content_too_large",
        headers=(*bearer("jwt_admin"), *JSON),
        body=" " * 65_537,
    )
    yield Case(
        "revoke any with such a body and a key",
        REVOKE_MANY,
        403,
        "interactive_required",
        INTERACTIVE,
        (*bearer("key_admin"), *JSON),
        " " * 65_537,
    )
    yield Case(
        "revoke any with a form",
        REVOKE_MANY,
        422,
        "input_invalid",
        headers=(*bearer("jwt_admin"), ("content-type", "text/plain")),
        body=SOME,
        fields=("",),
    )
