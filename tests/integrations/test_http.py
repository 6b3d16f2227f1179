"""Errors as answers, without a framework (RFC 9457; RFC 6750, section 3; RFC 9110, section 11)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case

from msk_auth.core.errors import PROBLEM_BASE, bearer_challenge
from msk_auth.errors import InputInvalid, LoginTooOld, Problem, TooManyAttempts
from msk_auth.http.answers import Answer, ProblemRenderer, close_reason
from msk_auth.http.parsing import (
    parse_create,
    parse_ids,
    parse_list,
    parse_list_all,
    parse_rotate,
)
from msk_auth.keys import KeyFilter, KeyValue

RENDERER = ProblemRenderer("api")


class LoginFailed(Problem):
    """An application's own 401 without a challenge."""

    status = 401
    code = "login_failed"
    title = "The login failed"


class Rude(Problem):
    """A problem that repeats what a client sent."""

    status = 401
    code = "rude"

    def __init__(self, sent: str) -> None:
        super().__init__(sent)
        self.sent = sent

    def challenge(self) -> Mapping[str, str]:
        return {"error": self.sent, f"x{self.sent}": "1"}

    def members(self) -> Mapping[str, object]:
        return {"sent": self.sent, "status": 200, "code": "fine", "at": timedelta(1)}


def test_a_401_always_has_a_challenge() -> None:
    """RFC 9110, section 15.5.2."""
    answer = RENDERER.answer(LoginFailed())
    assert dict(answer.headers)["www-authenticate"] == 'Bearer realm="api"'
    assert json.loads(answer.body)["type"] == f"{PROBLEM_BASE}#login_failed"


def test_the_headers_of_a_problem_are_its_own() -> None:
    other = ProblemRenderer("other")
    assert dict(other.answer(LoginFailed()).headers)["www-authenticate"] == 'Bearer realm="other"'
    challenges = [RENDERER.answer(LoginTooOld(timedelta(seconds=n))).headers for n in (1, 2)]
    assert challenges[0] != challenges[1]
    waits = [dict(RENDERER.answer(TooManyAttempts(n)).headers)["retry-after"] for n in (1, 2)]
    assert waits == ["1", "2"]


@given(st.text())
def test_nothing_a_client_sent_breaks_out_of_a_header_or_the_document(sent: str) -> None:
    answer = RENDERER.answer(Rude(sent))
    for name, value in answer.headers:
        assert all(" " <= character <= "~" for character in name + value)
    document = json.loads(answer.body)
    assert document["sent"] == document["detail"] == sent
    assert (document["status"], document["code"]) == (401, "rude")
    assert document["at"] == "1 day, 0:00:00"


def test_a_key_value_in_a_document_is_its_mask() -> None:
    class Careless(Problem):
        def members(self) -> Mapping[str, object]:
            return {"key": KeyValue("msk_secret", key_id="a", mask="msk_a_…")}

    assert json.loads(RENDERER.answer(Careless()).body)["key"] == "msk_a_…"


@pytest.mark.parametrize(
    ("parameters", "header"),
    [
        ({}, 'Bearer realm="api"'),
        ({"error": "invalid_token"}, 'Bearer realm="api", error="invalid_token"'),
        ({"scope": 'a"b\\c'}, r'Bearer realm="api", scope="a\"b\\c"'),
        ({"scope": "a\r\nSet-Cookie: b=c"}, 'Bearer realm="api", scope="a??Set-Cookie: b=c"'),
        ({"scope": "é\x00\x7f…"}, 'Bearer realm="api", scope="????"'),
    ],
)
def test_every_parameter_is_a_quoted_string(parameters: dict[str, str], header: str) -> None:
    assert bearer_challenge("api", parameters) == header


def test_headers_of_an_application_win_and_are_sent_once() -> None:
    answer = Answer(405, (("allow", "GET"), ("x", "1"))).with_headers(
        [("Allow", "POST"), ("Y", "2")]
    )
    assert answer.headers == (("allow", "POST"), ("x", "1"), ("y", "2"))


def test_an_error_of_others_gets_no_code_and_no_challenge() -> None:
    for status in range(400, 600):
        with case(status):
            answer = RENDERER.http_error(status)
            document = json.loads(answer.body)
            assert answer.status == document["status"] == status
            assert document.keys() == {"type", "title", "status"}
            assert document["type"] == "about:blank"
            assert document["title"]
            assert dict(answer.headers).keys() == {"content-type", "cache-control"}


def test_an_error_of_others_keeps_its_text() -> None:
    answer = RENDERER.http_error(409, "Too late.", members={"code": "theirs", "status": 1, "x": 2})
    assert json.loads(answer.body) == {
        "type": "about:blank", "title": "Conflict", "status": 409, "detail": "Too late.", "code": "theirs", "x": 2,
    }  # fmt: skip
    assert close_reason(RENDERER.http_error(404)) == "Not Found"


JSON = "application/json"
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
members = st.sampled_from(["name", "scopes", "expires_in_days", "overlap_seconds", "owner_id"])
objects = st.dictionaries(members | st.text(), values).map(lambda value: json.dumps(value).encode())


@given(st.binary() | objects | values.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_a_request_or_invalid(body: bytes) -> None:
    """ASVS 5.0 2.2: what is read is exactly what was meant, or refused."""
    for parse, kind in ((parse_create, dict), (parse_rotate, timedelta)):
        outcome = attempt(parse, body, JSON)
        assert isinstance(outcome, kind | InputInvalid)
        if isinstance(outcome, InputInvalid):
            assert outcome.errors
            assert RENDERER.answer(outcome).status == 422


@given(st.binary() | st.text(alphabet="statuscurolimt=&%0123456789").map(str.encode))
def test_any_query_is_a_request_or_invalid(query: bytes) -> None:
    outcome = attempt(parse_list, query)
    assert isinstance(outcome, dict | InputInvalid)
    if isinstance(outcome, InputInvalid):
        assert {error.field for error in outcome.errors} <= {"", "status", "cursor", "limit"}


@given(
    st.binary()
    | st.builds(
        lambda name, value: f"{name}={value}".encode(),
        st.sampled_from(["owner_id", "created_before", "unused_since", "expires_before"]),
        st.text() | st.datetimes().map(lambda at: f"{at.isoformat()}Z"),
    )
)
def test_any_query_of_an_administrator_is_a_request_or_invalid(query: bytes) -> None:
    outcome = attempt(parse_list_all, query)
    assert isinstance(outcome, dict | InputInvalid)
    if isinstance(outcome, InputInvalid):
        moments = {"created_before", "unused_since", "expires_before"}
        known = {"", "owner_id", "status", *moments, "label", "cursor", "limit"}
        assert {error.field for error in outcome.errors} <= known


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02t03:04:05.5z", datetime(2026, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)),
        ("2026-01-02T03:04:05.000001%2B01:30", datetime(2026, 1, 2, 1, 34, 5, 1, tzinfo=UTC)),
        ("2024-02-29T23:59:59-12:00", datetime(2024, 3, 1, 11, 59, 59, tzinfo=UTC)),
    ],
)
def test_a_time_of_a_query_is_read_as_rfc_3339_has_it(text: str, expected: datetime) -> None:
    for name in ("created_before", "unused_since", "expires_before"):
        wanted = parse_list_all(f"{name}={text}".encode())
        assert wanted == {"wanted": KeyFilter(**{name: expected})}


def test_ids_keep_their_order() -> None:
    assert parse_ids(json.dumps({"ids": ["b", "a", "b"]}).encode(), JSON) == ("b", "a", "b")


def attempt(parse: Callable[..., object], *sent: object) -> object:
    """What was read, or why it was refused."""
    try:
        return parse(*sent)
    except InputInvalid as refused:
        return refused
