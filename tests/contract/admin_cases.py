"""Who may list and revoke the keys of all owners, and with which queries and bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .case import JSON, Case, case

LIST = "GET /api/admin/keys"
REVOKE_MANY = "POST /api/admin/keys/revoke"
REVOKE_ONE = "POST /api/admin/keys/<key_bob_id>/revoke"

SOME = '{"ids": ["<key_bob_id>", "<key_id>", "<id_unknown>"]}'


def admin_cases() -> Iterator[Case]:
    """The key routes for administrators (G3; API Security Top 10, API1 and API5)."""
    for request in (LIST, REVOKE_MANY, REVOKE_ONE):
        body = SOME if request == REVOKE_MANY else ""
        yield case(request, "credentials_missing")
        yield case(request, 200, "jwt_admin", headers=JSON, body=body)
        for credential in ("key", "key_admin", "key_nothing"):
            yield case(request, "interactive_required", credential, headers=JSON, body=body)
        for credential in ("jwt", "jwt_bob"):
            answer = "permission_denied"
            yield case(request, answer, credential, needs="admin:config", headers=JSON, body=body)
        yield case(request, "login_too_old", "jwt_admin_old", headers=JSON, body=body)
        unknown, fields = f"{request}?owner=bob", ("owner",)
        yield case(
            unknown, "permission_denied", "jwt", needs="admin:config", headers=JSON, body=body
        )
        yield case(unknown, "input_invalid", "jwt_admin", headers=JSON, body=body, fields=fields)
    for key_id in (
        "<id_unknown>",
        "%",
        "'; drop table keys --",
        "\x00",
        "\xe9",
        "x" * 5000,
        "<key>",
    ):
        name = f"revoke any {key_id[:20]!r}"
        request = REVOKE_ONE.replace("<key_bob_id>", key_id)
        yield case(request, "key_not_found", "jwt_admin", name=name)
    yield from _input_cases()


def _input_cases() -> Iterator[Case]:
    moment = "2026-01-02T03:04:05"
    for query, fields in (
        ("limit=0", ("limit",)),
        ("limit=201", ("limit",)),
        ("limit=a&status=dead&unused_since=x", ("status", "unused_since", "limit")),
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
        name = f"list all ?{query[:50]} ({len(query)})"
        yield case(f"{LIST}?{query}", "input_invalid", "jwt_admin", name=name, fields=fields)
    for query in (
        "owner_id=bob&status=active&limit=200",
        "owner_id=org%3Aacme&label=env:prod",
        "owner_id=unknown",
        f"created_before={moment}Z&unused_since={moment.lower()}z&expires_before={moment}.5%2B01:00",
        "created_before=0001-01-01T00:00:00%2B14:00&expires_before=9999-12-31T23:59:59-14:00",
    ):
        yield case(f"{LIST}?{query}", 200, "jwt_admin")
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
        name = f"revoke any {body[:40]!r} and {len(body)}"
        yield _revoked(body, "input_invalid", name, fields=(field,))
    for body in ('{"ids": ["", "\x7f", "\xc3\xa9", "<key_id>", "<key_id>"]}', SOME):
        yield _revoked(body, 200, f"revoke any {body[:40]!r}")
    long, name = " " * 65_537, "revoke any with a body of 65,537 bytes"
    yield _revoked(long, "content_too_large", name)
    yield _revoked(long, "interactive_required", f"{name} and a key", by="key_admin")
    text = (("content-type", "text/plain"),)
    yield _revoked(SOME, "input_invalid", "revoke any with a form", headers=text, fields=("",))


def _revoked(
    body: str,
    answer: int | str,
    name: str,
    *,
    by: str = "jwt_admin",
    headers: Any = JSON,
    fields: Any = None,
) -> Case:
    return case(REVOKE_MANY, answer, by, name=name, headers=headers, body=body, fields=fields)
