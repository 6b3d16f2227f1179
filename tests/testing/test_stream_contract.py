"""The contract for what goes on: it finds an adapter that breaks a promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.testing.test_adapter_contract import ideal

from msk_auth import KeyRevoked
from msk_auth.testing import BackgroundLoop, StreamContract
from msk_auth.testing._adapter_contract_case import TOKEN, Case
from msk_auth.testing.adapter import (
    AdapterDriver,
    Reply,
    World,
    lines_blocking,
    make_world,
    revoke,
)

pytest_plugins = ["pytester"]

CONTRACT = StreamContract()
STREAMED = Reply(200, (), b"first\n")
REFUSED = ideal(Case("revoked", "GET /again", 401, "key_revoked", TOKEN))


class Answers:
    """An adapter that always gives the same answer."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply

    def send(
        self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Reply:
        return self.reply


def holds(test: Callable[[World, AdapterDriver], None], reply: Reply) -> bool:
    try:
        test(make_world(), Answers(reply))
    except AssertionError:
        return False
    return True


def test_it_finds_a_stream_that_does_not_end_or_never_begins() -> None:
    test = CONTRACT.test_a_stream_ends_when_its_credential_is_revoked
    assert holds(test, STREAMED)
    assert not holds(test, replace(STREAMED, body=b"first\nsecond\n"))
    assert not holds(test, replace(STREAMED, body=b""))
    assert not holds(test, REFUSED)


def test_it_finds_a_request_that_reuses_an_older_verification() -> None:
    test = CONTRACT.test_a_request_that_verifies_again_is_refused_as_a_new_one
    assert holds(test, REFUSED)
    assert not holds(test, replace(REFUSED, status=200))
    assert not holds(test, replace(REFUSED, body=b'{"code": "credentials_missing"}'))
    assert not holds(test, replace(REFUSED, raw_headers=REFUSED.raw_headers[:1]))


def test_what_its_routes_stream_is_more_than_a_revoked_key_may_read() -> None:
    world = make_world()
    (header,) = [value for _, value in world.bearer("key")]
    principal = world.blocking.authenticate([header])
    assert list(lines_blocking(world.blocking, principal)) == [b"first\n", b"second\n"]
    with pytest.raises(KeyRevoked):
        world.blocking.authenticate([header])


def test_its_routes_need_a_request_with_a_key() -> None:
    world = make_world()
    (header,) = [value for _, value in world.bearer("jwt")]
    principal = world.blocking.authenticate([header])
    with (
        BackgroundLoop() as loop,
        pytest.raises(AssertionError, match="send the request with a key"),
    ):
        loop.run(revoke(world.authenticator, principal))


def test_a_class_without_its_fixture_fails_with_its_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "from msk_auth.testing import StreamContract\n\nclass TestIt(StreamContract):\n    pass\n"
    )
    result = pytester.runpytest("-q", "-k", "stream_ends")
    result.stdout.fnmatch_lines(
        ["*NotImplementedError: give your test class a fixture named `driver`"]
    )
