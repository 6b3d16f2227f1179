"""Problems as answers, and what is read of a request: nothing that a client sent breaks out, and any text is read or refused.

With Flask, whose `auth.answer` gives the answer to a problem; that every adapter gives the same one is in the contract.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flask")

from flask import Flask
from tests.contract.adapter import MAX_AGE, START, make_world

from msk_auth.errors import LoginTooOld, Problem, TooManyAttempts
from msk_auth.integrations.flask import FlaskAuth
from msk_auth.keys import KeyValue

WORLD = make_world()


APP = Flask(__name__)
AUTH = FlaskAuth(WORLD.blocking, APP)
APP.register_blueprint(AUTH.key_routes())
APP.register_blueprint(AUTH.admin_key_routes("admin:config", max_age=MAX_AGE))


def answer(problem: Problem) -> Any:
    with APP.test_request_context():
        return AUTH.answer(problem)


def asked(target: str, name: str = "jwt", **more: Any) -> tuple[int, Any]:
    """The status of a request with a login, and the JSON of its answer."""
    headers = {"Authorization": f"Bearer {WORLD.names[name]}"}
    reply = APP.test_client().open(target, headers=headers, **more)
    return reply.status_code, reply.json


def wrong_fields(content: Any) -> set[str]:
    return {error["field"] for error in content.get("errors", ())}


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
    assert answer(LoginFailed()).headers["www-authenticate"] == 'Bearer realm="api"'
    assert answer(LoginFailed()).json["type"].endswith("/reference/errors/#login_failed")


def test_the_headers_of_a_problem_are_its_own() -> None:
    challenges = [
        answer(LoginTooOld(timedelta(seconds=n))).headers["www-authenticate"] for n in (1, 2)
    ]
    assert challenges[0] != challenges[1]
    assert [answer(TooManyAttempts(n)).headers["retry-after"] for n in (1, 2)] == ["1", "2"]


@given(st.text())
def test_nothing_a_client_sent_breaks_out_of_a_header_or_the_document(sent: str) -> None:
    answered = answer(Rude(sent))
    for name, value in answered.headers.items():
        assert all(" " <= character <= "~" for character in name + value)
    document = json.loads(answered.data)
    assert document["sent"] == document["detail"] == sent
    assert (document["status"], document["code"]) == (401, "rude")
    assert document["at"] == "1 day, 0:00:00"


def test_a_key_value_in_a_document_is_its_mask() -> None:
    class Careless(Problem):
        def members(self) -> Mapping[str, object]:
            return {"key": KeyValue("msk_secret", key_id="a", mask="msk_a_…")}

    assert answer(Careless()).json["key"] == "msk_a_…"


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
    WORLD.reset()
    for target in ("/api/keys", f"/api/keys/{WORLD.names['key_id']}/rotate"):
        status, content = asked(target, method="POST", data=body, content_type="application/json")
        assert (status, bool(wrong_fields(content))) in {(201, False), (422, True)}


def test_the_error_of_a_member_names_its_unit_and_what_null_means() -> None:
    wrong = {"expires_in_days": 0, "description": 1, "labels": 1, "networks": 1, "scopes": 1}
    _, content = asked("/api/keys", method="POST", json={"name": "k", **wrong})
    messages = {error["field"]: error["message"] for error in content["errors"]}
    assert messages.keys() == wrong.keys()
    assert "days" in messages["expires_in_days"]
    meanings = {"expires_in_days": "no end", "networks": "everywhere", "scopes": "all of yours"}
    for name, message in messages.items():
        assert f"null for {meanings.get(name, 'none')}." in message
    rotate = f"/api/keys/{WORLD.names['key_id']}/rotate"
    _, content = asked(rotate, method="POST", json={"overlap_seconds": -1})
    assert "seconds" in content["errors"][0]["message"]


MOMENTS = {"created_before", "unused_since", "expires_before"}


@given(
    st.text()
    | st.text(alphabet="statuscurolimt=&%0123456789")
    | st.builds(
        "{}={}".format,
        st.sampled_from(["owner_id", *MOMENTS]),
        st.text() | st.datetimes().map(lambda at: f"{at.isoformat()}Z"),
    )
)
def test_any_query_is_a_request_or_invalid(query: str) -> None:
    sent = quote(query, safe="=&%+", errors="surrogatepass")
    for target, name, more in (
        ("/api/keys", "jwt", {"on_behalf_of"}),
        ("/api/admin/keys", "jwt_admin", {"owner_id", *MOMENTS}),
    ):
        status, content = asked(f"{target}?{sent}", name)
        fields = wrong_fields(content)
        names = {name for name, _ in parse_qsl(sent, keep_blank_values=True)}
        known = {"status", "cursor", "limit", "label"} | more
        assert (status, bool(fields)) in {(200, False), (422, True)}
        assert fields <= {"", *names}
        assert status != 200 or names <= known


@pytest.mark.parametrize(
    ("moment", "is_later"),
    [
        ("2026-01-02T03:04:05Z", False),
        ("2026-01-02t03:04:05.000001z", True),
        ("2026-01-02T03:04:05.5Z", True),
        ("2026-01-02T04:34:05%2B01:30", False),
        ("2026-01-02T04:34:05.000001%2B01:30", True),
        ("2026-01-01T15:04:05-12:00", False),
        ("2026-01-01T15:04:05.000001-12:00", True),
        ("2024-02-29T23:59:59Z", False),
    ],
)
def test_a_time_of_a_query_is_read_as_rfc_3339_has_it(moment: str, is_later: bool) -> None:
    """The keys were made at `START`."""
    assert START.isoformat() == "2026-01-02T03:04:05+00:00"
    WORLD.reset()
    status, content = asked(f"/api/admin/keys?created_before={moment}", "jwt_admin")
    assert (status, bool(content["items"])) == (200, is_later)
