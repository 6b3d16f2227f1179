"""Bodies and queries of the key routes that are not acceptable, and some that are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

from .case import JSON, Case, case

Headers: TypeAlias = tuple[tuple[str, str], ...]

ROTATE = "POST /api/keys/<key_id>/rotate"


def input_cases() -> Iterator[Case]:
    """What is not acceptable in a body or a query (ASVS 5.0 2.2 and 4.1; API3: mass assignment)."""

    def create(body: str | dict[str, Any], *fields: str, headers: Headers = JSON) -> Case:
        return _refused("POST /api/keys", body, *fields, headers=headers)

    for text in (
        "", " ", "null", "[]", '"name"', "1", "true", "{", "{]", '{"name": "a"', '{"name": "a"}}', "{'name': 'a'}",
        '{"name": "a", "name": "b"}', '{"name": NaN}', '{"name": Infinity}', '{"name": "a\x00"}', '{"name": "\xff"}',
        '{"name": ' + "9" * 5000 + "}", "[" * 30_000, '{"a":' * 10_000, "\xef\xbb\xbf{}", '{"name": "a"}\x00',
    ):  # fmt: skip
        yield create(text, "")
    yield create({}, "name")
    names: list[Any] = [
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
    ]
    for name in names:
        yield create({"name": name}, "name")
    each_scopes: list[Any] = ["tasks:read", 1, {}, [1], [None], [["tasks:read"]], ["admin:config"], ["tasks:read", "x"],
                   [""], ["\x00"], [str(n) for n in range(101)]]  # fmt: skip
    for scopes in each_scopes:
        yield create({"name": "a", "scopes": scopes}, "scopes")
    each_days: list[Any] = [0, -1, 1.5, "1", True, [], {}, 36_501, 10**30, -(10**30)]
    for days in each_days:
        yield create({"name": "a", "expires_in_days": days}, "expires_in_days")
    for text in ("1e999", "1e300", "36501.0"):
        yield create(f'{{"name": "a", "expires_in_days": {text}}}', "expires_in_days")
    # A whole number, however it is written, is an integer to JSON Schema.
    body = '{"name": "a", "expires_in_days": 30.0}'
    yield case("POST /api/keys", 201, "jwt", name=f"create {body!r}", headers=JSON, body=body)
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
        yield create('{"name": "a"}', "", headers=(("content-type", content_type),))
    yield create('{"name": "a"}', "", headers=())

    yield from _edits()
    for body in ("[]", "{", '{"overlap_seconds": "1"}', '{"overlap_seconds": -1}', '{"overlap_seconds": null}',
                 '{"overlap_seconds": 7776001}', '{"overlap_seconds": 1e-3}', '{"overlap_seconds": true}',
                 '{"seconds": 1}'):  # fmt: skip
        field = "overlap_seconds" if "overlap" in body else "seconds" if "seconds" in body else ""
        yield _refused(ROTATE, body, field)
    for body in (
        "{}",
        '{"overlap_seconds": 0}',
        '{"overlap_seconds": 7776000}',
        '{"overlap_seconds": 1e3}',
    ):
        json_type = (("content-type", "Application/JSON; charset=utf-8"),)
        yield case(ROTATE, 201, "jwt", name=f"rotate {body!r}", headers=json_type, body=body)
    for query, field in (
        ("limit=0", "limit"), ("limit=201", "limit"), ("limit=-1", "limit"), ("limit=a", "limit"), ("limit=", "limit"),
        ("limit=1e1", "limit"), ("limit=%31%00", "limit"), ("limit=" + "9" * 5000, "limit"), ("limit=1&limit=2", "limit"),
        ("status=dead", "status"), ("status=", "status"), ("status=ACTIVE", "status"), ("cursor=", "cursor"),
        ("status=active&status=active", "status"), ("cursor=x", "cursor"), ("cursor=%00", "cursor"),
        ("cursor=" + "A" * 9000, "cursor"), ("label=", "label"), ("label=A", "label"), ("label=a&label=a", "label"),
        ("&".join(["x=1"] * 101), ""), ("sort=name&owner_id=bob", "owner_id sort"), ("x=%ff%zz", "x"), ("Limit=1", "Limit"),
        ("x" * 101 + "=1", ""), ("limit=a&x=1", "x limit"),
    ):  # fmt: skip
        name = f"list ?{query[:40]} ({len(query)})"
        yield case(
            f"GET /api/keys?{query}",
            "input_invalid",
            "jwt",
            name=name,
            fields=tuple(field.split(" ")),
        )
    for query in (
        "limit=1",
        "limit=200",
        "status=revoked&limit=5",
        "label=env:prod",
        "",
        "&&&",
    ):
        yield case(f"GET /api/keys?{query}", 200, "jwt")
    long, name = " " * 65_537, "a body of 65,537 bytes"
    yield case("POST /api/keys", "content_too_large", "jwt", name=name, headers=JSON, body=long)
    name = "a large body without credentials"
    yield case("POST /api/keys", "credentials_missing", name=name, headers=JSON, body=long)


def _edits() -> Iterator[Case]:
    """Bodies that edit a key, and the same members of a new one."""
    target = "PATCH /api/keys/<key_id>"
    descriptions: list[Any] = [1, [], {}, "x" * 501, "a\nb"]
    each_labels: list[Any] = ["a", 1, {}, [1], [None], ["A"], ["a b"], [""]]
    each_labels.append([f"a{number}" for number in range(21)])
    each_networks: list[Any] = [
        "10.0.0.0/8",
        1,
        {},
        [],
        [1],
        ["x"],
        ["10.0.0.1/8"],
        ["fe80::1%eth0"],
        ["010.0.0.0/8"],
    ]
    each_networks.append([f"10.0.0.{number}" for number in range(51)])
    wrong: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        *(({"description": description}, ("description",)) for description in descriptions),
        *(({"labels": labels}, ("labels",)) for labels in each_labels),
        *(({"networks": networks}, ("networks",)) for networks in each_networks),
        ({"description": 1, "labels": 1, "networks": 1}, ("description", "labels", "networks")),
    ]
    each_resources: list[Any] = ["task:42", 1, {}, [1], ["task"], ["task:*"], ["task:4 2"]]
    each_resources.append([f"task:{number}" for number in range(101)])
    for resources in each_resources:
        yield _refused("POST /api/keys", {"name": "a", "resources": resources}, "resources")
    for given, fields in wrong:
        yield _refused(target, given, *fields)
        yield _refused("POST /api/keys", {"name": "a", **given}, *fields)
    names: list[Any] = [None, 1, "", "a" * 101]
    for name in names:
        yield _refused(target, {"name": name}, "name")
    for member in (
        "scopes",
        "resources",
        "expires_at",
        "expires_in_days",
        "owner_id",
        "revoked_at",
        "digest",
    ):
        yield _refused(target, {"name": "a", member: None}, member)
    for body in ("", "{}", "[]", '{"name": "a", "name": "b"}'):
        yield _refused(target, body, "")
    yield _refused(target, {"name": "a"}, "", headers=(("content-type", "text/plain"),))
    for content_type in ("application/json", "application/merge-patch+json"):
        for body in (
            '{"name": "a"}',
            '{"description": null, "labels": null}',
            '{"description": "a", "labels": ["env:prod"]}',
            '{"networks": ["203.0.113.0/24", "2001:db8::/32"]}',
        ):
            name, headers = f"edit {body} as {content_type}", (("content-type", content_type),)
            yield case(target, 200, "jwt", name=name, headers=headers, body=body)


def _refused(
    request: str, body: str | dict[str, Any], *fields: str, headers: Headers = JSON
) -> Case:
    text = body if isinstance(body, str) else json.dumps(body)
    name = f"{request} {text[:70]!r} and {len(text)} {headers}"
    return case(
        request, "input_invalid", "jwt", name=name, headers=headers, body=text, fields=fields
    )
