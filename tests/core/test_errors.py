"""The answers (design, section 4), against the table as it stands there."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.cases import case

from msk_auth.core.errors import SigningKeysUnavailable
from msk_auth.errors import (
    CredentialRefused,
    CredentialsMissing,
    Forbidden,
    InputInvalid,
    InteractiveRequired,
    KeyLimitReached,
    KeyNotActive,
    KeyNotFound,
    LoginTooOld,
    NotFound,
    PermissionDenied,
    Problem,
    RequestMalformed,
    StoreUnavailable,
    TooManyAttempts,
)

INVALID_TOKEN = {"error": "invalid_token"}
USER_AUTHENTICATION = "insufficient_user_authentication"

TABLE = [
    # situation, status, challenge, code, retry_after
    (CredentialsMissing(), 401, {}, "credentials_missing", None),
    (RequestMalformed(), 400, {"error": "invalid_request"}, "request_malformed", None),
    (CredentialRefused("key_malformed"), 401, INVALID_TOKEN, "key_malformed", None),
    (CredentialRefused("key_unknown"), 401, INVALID_TOKEN, "key_unknown", None),
    (CredentialRefused("key_revoked"), 401, INVALID_TOKEN, "key_revoked", None),
    (CredentialRefused("key_expired"), 401, INVALID_TOKEN, "key_expired", None),
    (CredentialRefused("owner_disabled"), 401, INVALID_TOKEN, "owner_disabled", None),
    (CredentialRefused("token_invalid"), 401, INVALID_TOKEN, "token_invalid", None),
    (CredentialRefused("token_expired"), 401, INVALID_TOKEN, "token_expired", None),
    (CredentialRefused("token_revoked"), 401, INVALID_TOKEN, "token_revoked", None),
    (CredentialRefused("reference_invalid"), 401, INVALID_TOKEN, "reference_invalid", None),
    (
        PermissionDenied({"b", "a"}),
        403,
        {"error": "insufficient_scope", "scope": "a b"},
        "permission_denied",
        None,
    ),
    (Forbidden("cross_origin_refused"), 403, None, "cross_origin_refused", None),
    (InteractiveRequired(), 403, {"error": USER_AUTHENTICATION}, "interactive_required", None),
    (Forbidden("key_required"), 403, None, "key_required", None),
    (Forbidden("address_not_allowed", key_id="k"), 403, None, "address_not_allowed", None),
    (
        LoginTooOld(timedelta(minutes=5)),
        401,
        {"error": USER_AUTHENTICATION, "max_age": "300"},
        "login_too_old",
        None,
    ),
    (NotFound(), 404, None, "not_found", None),
    (KeyNotFound(), 404, None, "key_not_found", None),
    (KeyLimitReached(5), 409, None, "key_limit_reached", None),
    (KeyNotActive(), 409, None, "key_not_active", None),
    (InputInvalid.of("name", "wrong"), 422, None, "input_invalid", None),
    (Forbidden("signature_invalid"), 403, None, "signature_invalid", None),
    (SigningKeysUnavailable(60), 503, None, "signing_keys_unavailable", 60),
    (TooManyAttempts(30), 429, None, "too_many_attempts", 30),
    (StoreUnavailable(), 503, None, "store_unavailable", 5),
    (Problem(), 500, None, "internal_error", None),
]


def classes(root: type[Problem]) -> set[type[Problem]]:
    return {root}.union(*(classes(child) for child in root.__subclasses__()))


@pytest.mark.parametrize(("problem", "status", "challenge", "code", "retry_after"), TABLE)
def test_each_situation_has_its_answer(
    problem: Problem,
    status: int,
    challenge: dict[str, str] | None,
    code: str,
    retry_after: int | None,
) -> None:
    assert (problem.status, problem.code, problem.retry_after) == (status, code, retry_after)
    assert problem.challenge() == challenge
    assert problem.title
    assert problem.detail == str(problem)


def test_the_table_is_complete_and_every_code_its_own() -> None:
    ours = {cls for cls in classes(Problem) if cls.__module__ == "msk_auth.core.errors"}
    by_reason = {CredentialRefused, Forbidden}
    assert {cls.__name__ for cls in ours - {type(row[0]) for row in TABLE}} == {"_Refusal"}
    codes = [row[3] for row in TABLE]
    assert {code for cls in by_reason for code in cls.reasons} < set(codes)
    titles = [row[0].title for row in TABLE]
    assert len(set(codes)) == len(codes)
    assert len(set(titles)) == len(titles)


def test_a_detail_can_be_replaced() -> None:
    assert CredentialRefused("token_revoked", "Idle for too long.").detail == "Idle for too long."
    refusal = CredentialRefused("token_revoked")
    assert (refusal.code, refusal.detail) == (
        "token_revoked",
        "This login has ended. Log in again.",
    )


@pytest.mark.parametrize("copied", [copy.copy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_problem_survives_the_result_backend_of_a_queue(
    copied: Callable[[Problem], Problem],
) -> None:
    own = CredentialRefused("token_revoked", "Idle for too long.", key_id="AAAAAAAAAAAA")
    for problem in (own, *(row[0] for row in TABLE)):
        with case(problem):
            twin = copied(problem)
            assert (type(twin), repr(twin)) == (type(problem), repr(problem))
            assert (twin.code, twin.title, twin.detail) == (
                problem.code,
                problem.title,
                problem.detail,
            )
            assert twin.members() == problem.members()
            assert twin.response_headers() == problem.response_headers()
            assert getattr(twin, "key_id", None) == getattr(problem, "key_id", None)


def test_a_refusal_may_carry_the_keys_public_id_and_never_shows_it() -> None:
    refusal = CredentialRefused("key_revoked", key_id="AAAAAAAAAAAA")
    assert refusal.key_id == "AAAAAAAAAAAA"
    assert "AAAAAAAAAAAA" not in f"{refusal} {refusal!r} {refusal.members()}"


def test_invalid_input_names_each_field() -> None:
    problem = InputInvalid([("name", "Too long."), ("", "Not an object."), ("a.b", "?")])
    assert problem.members() == {
        "errors": [
            {"field": "name", "message": "Too long."},
            {"field": "", "message": "Not an object."},
            {"field": "a.b", "message": "?"},
        ]
    }
    assert problem.detail == "name: Too long.; Not an object.; a.b: ?"


def test_other_answers_have_no_further_members() -> None:
    assert NotFound().members() == {}


def test_a_detail_contains_the_numbers_that_help() -> None:
    assert KeyLimitReached(5).detail == (
        "An account may have 5 active API keys. Revoke an unused key first."
    )


@pytest.mark.parametrize(
    ("seconds", "wait"),
    [
        (0, "0 seconds"),
        (1, "1 second"),
        (59, "59 seconds"),
        (60, "1 minute"),
        (61, "2 minutes"),
        (889, "15 minutes"),
        (3600, "1 hour"),
        (3601, "2 hours"),
    ],
)
def test_a_wait_is_rounded_up_to_the_unit_that_people_use(seconds: int, wait: str) -> None:
    assert TooManyAttempts(seconds).detail.endswith(f"Try again in {wait}.")


def test_an_application_adds_its_own_answers() -> None:
    class TaskNotFound(NotFound):
        code = "task_not_found"
        title = "The task was not found"

    assert (TaskNotFound().status, TaskNotFound().challenge()) == (404, None)
    assert TaskNotFound().detail == NotFound.default_detail


def test_answers_have_what_they_were_made_with() -> None:
    denied = PermissionDenied({"b", "a"})
    assert denied.required == ("a", "b")
    assert denied.challenge() == {"error": "insufficient_scope", "scope": "a b"}
    assert denied.detail == "This operation needs the permission a and b."
    assert PermissionDenied(()).challenge() == {"error": "insufficient_scope"}
    assert PermissionDenied(()).detail.startswith("This key has scopes")
    assert PermissionDenied({"a"}, "Not on Sundays.").detail == "Not on Sundays."
    assert Forbidden("address_not_allowed", key_id="k").key_id == "k"
    assert LoginTooOld(timedelta(minutes=5)).max_age == timedelta(minutes=5)
    assert KeyLimitReached(5).limit == 5
    assert SigningKeysUnavailable(60).retry_after == 60
    assert TooManyAttempts(30).retry_after == 30
    assert TooManyAttempts(30).detail == "Too many attempts. Try again in 30 seconds."
    (error,) = InputInvalid.of("name", "wrong").errors
    assert error == ("name", "wrong")


def test_a_problem_has_its_status_code_on_the_class_too() -> None:
    """Litestar looks for it on the class of an exception, Starlette's tools on the exception."""

    class Busy(Problem):
        status = 418

    assert (Busy.status_code, Busy().status_code) == (418, 418)
    assert (CredentialRefused.status_code, CredentialRefused("key_revoked").status_code) == (
        401,
        401,
    )


class WithoutChallenge(Problem):
    status = 401


@pytest.mark.parametrize(
    ("problem", "headers"),
    [
        (KeyNotFound(), {}),
        (
            CredentialRefused("key_revoked"),
            {"www-authenticate": 'Bearer realm="api", error="invalid_token"'},
        ),
        (CredentialsMissing(), {"www-authenticate": 'Bearer realm="api"'}),
        (WithoutChallenge(), {"www-authenticate": 'Bearer realm="api"'}),
        (StoreUnavailable(), {"retry-after": "5"}),
        (
            PermissionDenied({"b", 'a"\\\r\n'}),
            {
                "www-authenticate": 'Bearer realm="api", error="insufficient_scope",'
                ' scope="a\\"\\\\?? b"'
            },
        ),
    ],
)
def test_headers_for_an_answer_in_a_form_of_the_applications(
    problem: Problem, headers: dict[str, str]
) -> None:
    assert problem.response_headers() == {"cache-control": "no-store", **headers}
    named = {name: value.replace('"api"', '"shop"') for name, value in headers.items()}
    assert problem.response_headers("shop") == {"cache-control": "no-store", **named}
