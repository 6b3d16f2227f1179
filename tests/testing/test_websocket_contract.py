"""The contract for websockets itself: it fails for an adapter that breaks a promise."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.testing.test_adapter_contract import ideal

from msk_auth.testing import WebSocketContract
from msk_auth.testing._websocket_contract import _REFUSED
from msk_auth.testing.adapter import (
    POLICY_VIOLATION,
    Case,
    Conversation,
    Reply,
    WebSocketDriver,
    World,
    make_world,
)

pytest_plugins = ["pytester"]

WORLD = make_world()
CONTRACT = WebSocketContract()
REVOKED = next(case for case in _REFUSED if case.code == "key_revoked")
CLOSED = Conversation(
    opened=True, received=("alice",), close_code=POLICY_VIOLATION, close_reason="key_revoked"
)


class Says:
    """An adapter that always gives the same answer."""

    def __init__(self, held: Conversation) -> None:
        self.held = held

    def converse(
        self, target: bytes, headers: Sequence[tuple[bytes, bytes]], texts: Sequence[str]
    ) -> Conversation:
        return self.held


def refused(reply: Reply | None) -> Conversation:
    return Conversation(opened=False, refusal=reply)


def check_refusal(case: Case, held: Conversation) -> None:
    CONTRACT.test_a_refused_handshake_gets_its_answer(case, WORLD, Says(held))


def check_close(held: Conversation) -> None:
    CONTRACT.test_a_problem_after_the_handshake_closes_with_its_code(
        "jwt", "continue", "key_revoked", WORLD, Says(held)
    )


@pytest.mark.parametrize("case", _REFUSED, ids=[case.name for case in _REFUSED])
def test_what_the_table_asks_for_passes(case: Case) -> None:
    check_refusal(case, refused(ideal(case)))
    # And so does a bare refusal, where the server can do no more.
    check_refusal(case, refused(None))


@pytest.mark.parametrize(
    "held",
    [
        Conversation(opened=True),
        Conversation(opened=True, received=("alice",)),
        replace(refused(ideal(REVOKED)), received=("alice",)),
        refused(replace(ideal(REVOKED), status=403)),
        refused(replace(ideal(REVOKED), raw_headers=())),
        refused(replace(ideal(REVOKED), body=b'{"code": "key_revoked"}')),
    ],
    ids=["opens", "opens and talks", "talks", "another status", "no headers", "no document"],
)
def test_the_contract_finds_a_wrong_refusal(held: Conversation) -> None:
    with pytest.raises(AssertionError):
        check_refusal(REVOKED, held)


def test_a_close_with_the_code_passes() -> None:
    check_close(CLOSED)


@pytest.mark.parametrize(
    "held",
    [
        refused(None),
        replace(CLOSED, received=("alice", "alice")),
        replace(CLOSED, close_code=4500),
        replace(CLOSED, close_code=None),
        replace(CLOSED, close_reason=""),
    ],
    ids=["not opened", "goes on", "another code", "not closed", "no reason"],
)
def test_the_contract_finds_a_wrong_close(held: Conversation) -> None:
    with pytest.raises(AssertionError):
        check_close(held)


def fails(test: Callable[[World, WebSocketDriver], None], held: Conversation) -> bool:
    try:
        test(make_world(), Says(held))
    except AssertionError:
        return True
    return False


def test_the_contract_finds_doors_that_are_open_or_closed_by_mistake() -> None:
    alice = json.dumps({"owner": "alice", "kind": "api_key"})
    opened = Conversation(opened=True, received=(alice,))
    assert fails(CONTRACT.test_a_store_that_cannot_answer_opens_nothing, opened)
    assert fails(CONTRACT.test_a_store_that_cannot_answer_opens_nothing, refused(ideal(REVOKED)))
    assert fails(CONTRACT.test_a_login_opens_what_is_for_logins, refused(None))
    assert fails(CONTRACT.test_without_a_problem_it_goes_on, CLOSED)
    CONTRACT.test_an_accepted_credential_opens_it("key", WORLD, Says(opened))
    for held in (
        refused(None),
        Conversation(opened=True),
        replace(opened, received=(alice, alice)),
    ):
        with pytest.raises((AssertionError, ValueError)):
            CONTRACT.test_an_accepted_credential_opens_it("key", WORLD, Says(held))
    with pytest.raises(AssertionError):
        # A key that passes for a login.
        CONTRACT.test_an_accepted_credential_opens_it("jwt", WORLD, Says(opened))


@pytest.mark.parametrize(
    "held",
    [
        refused(None),
        Conversation(opened=True),
        replace(CLOSED, close_code=1011),
        replace(CLOSED, close_reason="store_unavailable"),
    ],
    ids=["not opened", "goes on", "another code", "another reason"],
)
def test_the_contract_finds_a_websocket_that_outstays_its_credential(held: Conversation) -> None:
    CONTRACT.test_a_websocket_is_closed_when_its_credential_is_revoked(
        b"/ws/watch", WORLD, Says(CLOSED)
    )
    with pytest.raises(AssertionError):
        CONTRACT.test_a_websocket_is_closed_when_its_credential_is_revoked(
            b"/ws/watch", WORLD, Says(held)
        )


def test_a_class_without_its_fixture_fails_with_its_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "from msk_auth.testing import WebSocketContract\n\nclass TestIt(WebSocketContract):\n    pass\n"
    )
    result = pytester.runpytest("-q", "-k", "goes_on")
    result.stdout.fnmatch_lines(
        ["*NotImplementedError: give your test class a fixture named `driver`"]
    )
