"""What every adapter must answer on websockets, as tests to be run against yours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pytest

from msk_auth import Principal, require_interactive
from msk_auth.errors import CredentialRefused, StoreUnavailable

from .adapter_contract import Contract, Reply, check
from .case import Case, bearer, case
from .world import START, TaskNotFound, User, World

POLICY_VIOLATION: Final = 1008
"""The code that a websocket is closed with (RFC 6455, section 7.4.1)."""


@dataclass(frozen=True)
class Conversation:
    """The course of a websocket connection.

    Attributes:
        opened: The handshake was accepted.
        refusal: The response in its place; None if it was accepted, or if the server can only send a status of its
            own.
        received: Every text that the application sent.
        close_code: The code with which the application closed; None if it did not.
        close_reason: The reason with which it closed.
    """

    opened: bool
    refusal: Reply | None = None
    received: tuple[str, ...] = ()
    close_code: int | None = None
    close_reason: str = ""


class WebSocketDriver(Protocol):
    """Opens websockets to an application."""

    def converse(
        self, target: bytes, headers: Sequence[tuple[bytes, bytes]], texts: Sequence[str]
    ) -> Conversation:
        """Open a websocket, send texts, and close it.

        Args:
            target: Path and query.
            headers: Of the handshake, besides its own.
            texts: Texts, sent one after the other.
        """
        ...


def talk(text: str, principal: Principal[User]) -> str:
    """The response of the route `/ws/talk` to a text.

    Raises:
        Problem: The text demands one.
    """
    match text:
        case "find it":
            raise TaskNotFound
        case "administer":
            require_interactive().check(principal, START)
        case "continue":
            raise CredentialRefused("key_revoked")
        case "read the store":
            raise StoreUnavailable
        case _:
            pass
    return principal.owner.id


def _refused() -> Iterator[Case]:
    for request in ("WS /ws", "WS /ws/admin"):
        yield case(request, "credentials_missing")
        for name, code in {
            "key_typo": "key_malformed",
            "key_unknown": "key_unknown",
            "key_revoked": "key_revoked",
            "key_disabled": "owner_disabled",
            "jwt_forged": "token_invalid",
            "jwt_expired": "token_expired",
            "jwt_ended": "token_revoked",
        }.items():
            yield case(request, code, name)
    yield case("WS /ws/admin", "interactive_required", "key_admin")
    for name, headers in {
        "no token": (("authorization", "Bearer"),),
        "two credentials": (*bearer("key"), *bearer("jwt")),
    }.items():
        yield case("WS /ws", "request_malformed", name=name, headers=headers)
    yield case("WS /ws?access_token=<jwt>", "credentials_missing")
    for place, header in {
        "a subprotocol": ("sec-websocket-protocol", "bearer, <key>"),
        "a cookie": ("cookie", "access_token=<jwt>"),
    }.items():
        yield case(
            "WS /ws", "credentials_missing", name=f"credentials in {place}", headers=(header,)
        )
    # A problem of the application's own before the handshake.
    yield case("WS /ws/missing", "task_not_found", "jwt")


_REFUSED: Final = tuple(_refused())


class WebSocketContract(Contract):
    """Tests of an adapter's websockets: subclass it as :class:`AdapterContract`, with a :class:`WebSocketDriver`.

    A refused handshake gets the answer that a request gets, where the server can send it. A problem that comes up later
    closes with 1008 and the problem's code as the reason.
    """

    @pytest.mark.parametrize("credential", ["key", "jwt"])
    def test_an_accepted_credential_opens_it(
        self, credential: str, world: World, driver: WebSocketDriver
    ) -> None:
        held = driver.converse(b"/ws", world.bearer(credential), [])
        assert held.opened
        (received,) = held.received
        described: dict[str, Any] = json.loads(received)
        assert described["owner"] == "alice"
        assert described["kind"] == ("interactive" if credential == "jwt" else "api_key")

    def test_a_login_opens_what_is_for_logins(self, world: World, driver: WebSocketDriver) -> None:
        assert driver.converse(b"/ws/admin", world.bearer("jwt_admin"), []).opened

    def test_a_refused_handshake_gets_its_answer(
        self, world: World, driver: WebSocketDriver
    ) -> None:
        for refused in _REFUSED:
            world.reset()
            target = world.fill(refused.request.removeprefix("WS "))
            headers = [(name.encode(), world.fill(value)) for name, value in refused.headers]
            held = driver.converse(target, headers, ["hello"])
            assert (held.opened, held.received) == (False, ()), refused.name
            if held.refusal is not None:
                check(refused, held.refusal, world)

    def test_a_store_that_cannot_answer_opens_nothing(
        self, world: World, driver: WebSocketDriver
    ) -> None:
        world.store.broken = OSError("down")
        held = driver.converse(b"/ws", world.bearer("key"), [])
        assert not held.opened
        if held.refusal is not None:
            assert (held.refusal.status, held.refusal.json["code"]) == (503, "store_unavailable")
            assert held.refusal.header("retry-after") == "5"

    @pytest.mark.parametrize(
        ("credential", "heard", "code"),
        [
            ("key", "find it", "task_not_found"),
            ("key", "administer", "interactive_required"),
            ("jwt", "continue", "key_revoked"),
            ("jwt", "read the store", "store_unavailable"),
        ],
    )
    def test_a_problem_after_the_handshake_closes_with_its_code(
        self, credential: str, heard: str, code: str, world: World, driver: WebSocketDriver
    ) -> None:
        held = driver.converse(b"/ws/talk", world.bearer(credential), ["hello", heard, "more"])
        assert held.opened
        assert held.received == ("alice",)
        assert (held.close_code, held.close_reason) == (POLICY_VIOLATION, code)

    def test_without_a_problem_it_goes_on(self, world: World, driver: WebSocketDriver) -> None:
        held = driver.converse(b"/ws/talk", world.bearer("jwt"), ["hello", "administer", "more"])
        assert held.received == ("alice", "alice", "alice")

    @pytest.mark.parametrize("target", [b"/ws/watch", b"/ws/again", b"/ws/admit"])
    def test_a_websocket_is_closed_when_its_credential_is_revoked(
        self, target: bytes, world: World, driver: WebSocketDriver
    ) -> None:
        held = driver.converse(target, world.bearer("key"), ["hello"])
        assert held.opened
        assert (held.close_code, held.close_reason) == (POLICY_VIOLATION, "key_revoked")
