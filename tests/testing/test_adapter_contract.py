"""The contract itself: it fails for an adapter that breaks a promise, and what it expects of a test class."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from msk_auth.testing._adapter_contract import CASES, Reply, check
from msk_auth.testing.adapter import Case, World, make_world

pytest_plugins = ["pytester"]

WORLD = make_world()


def ideal(case: Case) -> Reply:
    """What the table asks for."""
    headers = [(b"cache-control", b"no-store")]
    if case.challenge is not None:
        headers.append((b"www-authenticate", case.challenge.encode()))
    if case.retry_after is not None:
        headers.append((b"retry-after", case.retry_after.encode()))
    if case.code is None:
        return Reply(case.status, (*headers, (b"content-type", b"application/json")), b"{}")
    problem: dict[str, Any] = {
        "type": f"https://msk-auth.readthedocs.io/en/stable/reference/errors/#{case.code}",
        "title": "A title",
        "status": case.status,
        "detail": "A detail.",
        "code": case.code,
    }
    if case.fields is not None:
        problem["errors"] = [{"field": name, "message": "Wrong."} for name in case.fields]
    headers.append((b"content-type", b"application/problem+json"))
    return Reply(case.status, tuple(headers), json.dumps(problem).encode())


def without(name: bytes) -> Callable[[Reply], Reply]:
    return lambda reply: replace(
        reply, raw_headers=tuple(pair for pair in reply.raw_headers if pair[0] != name)
    )


def member(**changed: Any) -> Callable[[Reply], Reply]:
    def change(reply: Reply) -> Reply:
        return replace(reply, body=json.dumps(reply.json | changed).encode())

    return change


def twice(reply: Reply) -> Reply:
    return replace(reply, raw_headers=reply.raw_headers * 2)


FAULTS: dict[str, Callable[[Reply], Reply]] = {
    "admits every request": lambda reply: replace(reply, status=200),
    "no challenge": without(b"www-authenticate"),
    "may be cached": without(b"cache-control"),
    "no media type": without(b"content-type"),
    "every header twice": twice,
    "another type": member(type="about:blank"),
    "another code": member(code="unauthorized"),
    "another status in the body": member(status=500),
    "no title": member(title=""),
    "no detail": member(detail=""),
    "more than is documented": member(trace="app.py, line 1"),
    "the credential in the answer": member(detail=WORLD.names["key_revoked"]),
}


def test_what_the_table_asks_for_passes() -> None:
    # A failure shows the case. One test for each took longer than all of them.
    for case in CASES:
        check(case, ideal(case), WORLD)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_contract_finds_the_fault(fault: str) -> None:
    case = next(case for case in CASES if case.code == "key_revoked")
    with pytest.raises(AssertionError):
        check(case, FAULTS[fault](ideal(case)), WORLD)


@pytest.mark.parametrize(
    "errors",
    [[], [{"field": "scopes", "message": "Wrong."}], [{"field": "name", "message": ""}]],
    ids=["none", "another", "silent"],
)
def test_the_contract_finds_the_wrong_fields(errors: list[dict[str, str]]) -> None:
    case = next(case for case in CASES if case.fields == ("name",))
    with pytest.raises(AssertionError):
        check(case, member(errors=errors)(ideal(case)), WORLD)


def test_the_contract_finds_a_missing_time_to_wait() -> None:
    case = next(case for case in CASES if case.retry_after is not None)
    with pytest.raises(AssertionError):
        check(case, without(b"retry-after")(ideal(case)), WORLD)


def test_a_reset_brings_the_first_keys_back() -> None:
    world = make_world()
    principal = world.blocking.authenticate([f"Bearer {world.names['jwt']}".encode()])
    created = world.blocking.create_key(principal, name="one more")
    world.blocking.revoke_key(principal, world.names["key_id"])
    world.store.broken = OSError()
    world.reset()
    assert world.store.blocking.find(created.record.id) is None
    assert world.blocking.authenticate(_values(world.bearer("key"))).key_id == world.names["key_id"]
    assert (world.store.reads, len(world.events)) == (2, 1)


def _values(headers: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    return [value for _, value in headers]


def test_a_class_without_its_fixture_fails_with_its_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "from msk_auth.testing import AdapterContract\n\nclass TestIt(AdapterContract):\n    pass\n"
    )
    result = pytester.runpytest("-q", "-k", "test_two_requests")
    result.stdout.fnmatch_lines(
        ["*NotImplementedError: give your test class a fixture named `driver`"]
    )


def test_an_adapter_without_key_routes_declares_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from msk_auth.testing import AdapterContract

        class TestIt(AdapterContract):
            test_a_key_route_gives_its_answer = None
            test_only_the_named_key_routes_are_mounted = None
        """
    )
    output = pytester.runpytest("-q", "--collect-only").stdout.str()
    assert "test_a_guarded_route_gives_its_answer" in output
    assert "test_a_key_route" not in output
    assert "test_only_the_named_key_routes" not in output


def test_worlds_do_not_know_each_other() -> None:
    one, other = make_world(), make_world()
    assert isinstance(one, World)
    assert {name for name in one.names if one.names[name] == other.names[name]} == set()
