"""Who may do what (design, sections 2 and 4; ASVS 5.0, 8.2 and 8.3): the table first, then its properties."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case
from tests.core.support import MICROSECOND, NOW, SECOND

from msk_auth import (
    CredentialKind,
    Owner,
    Policy,
    Principal,
    any_credential,
    local_principal,
    require,
    require_interactive,
    require_key,
    require_login,
)
from msk_auth.core.policy import named_first
from msk_auth.errors import (
    ConfigurationError,
    InteractiveRequired,
    LoginTooOld,
    PermissionDenied,
    Problem,
)

INTERACTIVE, API_KEY, TOKEN = (
    CredentialKind.INTERACTIVE,
    CredentialKind.API_KEY,
    CredentialKind.TOKEN,
)
HOUR = timedelta(hours=1)


def principal(
    kind: Any = INTERACTIVE, *permissions: str, age: timedelta = timedelta(0)
) -> Principal[str]:
    granted = frozenset(permissions)
    return Principal(Owner("ann", granted, "Ann"), kind, granted, NOW - age)


def outcome(policy: Policy, caller: Principal[str]) -> str | None:
    try:
        policy.check(caller, NOW)
    except Problem as refused:
        return refused.code
    return None


ANY = Policy()
READ = require("read")
BOTH = require("read", "write")
LOGIN = require_interactive()
LOGIN_WRITE = require_interactive("write")
FRESH = require_interactive(max_age=HOUR)
FRESH_WRITE = require_interactive("write", max_age=HOUR)
ANY_LOGIN = require_login()
ANY_LOGIN_WRITE = require_login("write")
KEY = require_key()
KEY_READ = require_key("read")
KEY_WRITE = require_key("write")

# The answer to a caller with the permission `read` who logged in two hours ago, by the kind of credential.
KINDS = INTERACTIVE, API_KEY, TOKEN
DENIED, NO_LOGIN, NO_KEY = "permission_denied", "interactive_required", "key_required"
TABLE = [
    (ANY, (None, None, None)),
    (any_credential(), (None, None, None)),
    (READ, (None, None, None)),
    (BOTH, (DENIED, DENIED, DENIED)),
    (LOGIN, (None, NO_LOGIN, NO_LOGIN)),
    (LOGIN_WRITE, (DENIED, NO_LOGIN, NO_LOGIN)),
    (FRESH, ("login_too_old", NO_LOGIN, NO_LOGIN)),
    (FRESH_WRITE, (DENIED, NO_LOGIN, NO_LOGIN)),
    (ANY_LOGIN, (None, NO_LOGIN, None)),
    (ANY_LOGIN_WRITE, (DENIED, NO_LOGIN, DENIED)),
    (KEY, (NO_KEY, None, NO_KEY)),
    (KEY_READ, (NO_KEY, None, NO_KEY)),
    (KEY_WRITE, (NO_KEY, DENIED, NO_KEY)),
]


@pytest.mark.parametrize(("policy", "answers"), TABLE)
def test_policy_and_kind_of_credential_decide(
    policy: Policy, answers: tuple[str | None, ...]
) -> None:
    assert {*KINDS} == {*CredentialKind}
    callers = [principal(kind, "read", age=2 * HOUR) for kind in KINDS]
    assert tuple(outcome(policy, caller) for caller in callers) == answers


class NewKind(Enum):
    PASSKEY = "interactive"


@pytest.mark.parametrize("kind", [None, "interactive", True, 1, NewKind.PASSKEY])
def test_a_kind_that_the_table_does_not_name_is_denied(kind: object) -> None:
    assert outcome(LOGIN, principal(kind)) == "interactive_required"
    assert outcome(ANY_LOGIN, principal(kind)) == "interactive_required"
    assert outcome(KEY, principal(kind)) == "key_required"


permission = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='"\\'),
    min_size=1,
    max_size=100,
)
permission_sets = st.frozensets(permission, max_size=5)
kinds = st.sampled_from(CredentialKind)
policies = st.builds(
    lambda permissions, max_age: Policy(permissions, interactive=True, max_age=max_age),
    permission_sets,
    st.none() | st.timedeltas(min_value=SECOND),
)


@given(policies, permission_sets, st.timedeltas(timedelta(0), timedelta(days=999)))
def test_nothing_lets_an_api_key_pass_as_a_login(
    policy: Policy, more: frozenset[str], age: timedelta
) -> None:
    # Guarantee G3: neither permissions nor time make a key interactive.
    caller = principal(API_KEY, *(policy.permissions | more), age=age)
    assert outcome(policy, caller) == "interactive_required"


@given(kinds, permission_sets, permission_sets)
def test_a_policy_passes_exactly_who_has_all_its_permissions(
    kind: CredentialKind, needed: frozenset[str], granted: frozenset[str]
) -> None:
    expected = None if needed <= granted else "permission_denied"
    assert outcome(Policy(needed), principal(kind, *granted)) == expected


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (timedelta(0), None),
        (HOUR - MICROSECOND, None),
        (HOUR, None),
        (HOUR + MICROSECOND, "login_too_old"),
        (-SECOND, None),  # within the leeway that the token was accepted with
    ],
)
def test_a_login_is_fresh_up_to_its_greatest_age(age: timedelta, expected: str | None) -> None:
    assert outcome(FRESH, principal(age=age)) == expected


def test_the_refusal_of_an_old_login_names_the_maximum_age() -> None:
    # RFC 9470, section 3.
    with pytest.raises(LoginTooOld) as refused:
        require_interactive(max_age=timedelta(seconds=90, microseconds=5)).check(
            principal(age=HOUR), NOW
        )
    assert refused.value.status == 401
    assert refused.value.challenge() == {
        "error": "insufficient_user_authentication",
        "max_age": "90",
    }


def test_a_missing_permission_is_refused_with_all_that_are_needed() -> None:
    # RFC 6750, section 3.1: `scope` is what is necessary, not what is missing.
    with pytest.raises(PermissionDenied) as refused:
        require("tasks:run", "tasks:read").check(principal(API_KEY, "tasks:read"), NOW)
    assert refused.value.status == 403
    assert refused.value.required == ("tasks:read", "tasks:run")
    assert refused.value.challenge() == {
        "error": "insufficient_scope",
        "scope": "tasks:read tasks:run",
    }
    assert refused.value.detail == ("This operation needs the permission tasks:read and tasks:run.")


def test_permissions_are_compared_exactly() -> None:
    for granted in ("Read", "read ", "rea", "readx", "*", "re*", ""):
        assert outcome(READ, principal(INTERACTIVE, granted)) == "permission_denied"


@pytest.mark.parametrize("wrong", ["", " ", "a b", "a\n", 'a"', "a\\", "é", "a\x00", "x" * 101])
def test_what_cannot_be_a_permission_is_refused_while_starting(wrong: str) -> None:
    # RFC 6749, section 3.3. A quote would end the parameter of a challenge.
    for make in (
        lambda: require(wrong),
        lambda: require_interactive("read", wrong),
        lambda: Policy(frozenset({wrong})),
    ):
        with pytest.raises(ConfigurationError, match="is not a permission"):
            make()


@pytest.mark.parametrize("guard", [require, require_interactive])
def test_what_is_no_text_is_no_permission(guard: Any) -> None:
    for wrong in (["tasks:read"], guard, None, 5):
        with case(wrong), pytest.raises(ConfigurationError, match="is not a permission"):
            guard(wrong)


def test_the_longest_permission_works() -> None:
    assert require("x" * 100).permissions == {"x" * 100}


@pytest.mark.parametrize("max_age", [timedelta(0), -HOUR, SECOND - MICROSECOND])
def test_an_age_that_no_login_can_meet_is_refused_at_start(max_age: timedelta) -> None:
    with pytest.raises(ConfigurationError, match="at least one second"):
        require_interactive(max_age=max_age)
    with pytest.raises(ConfigurationError, match="such as timedelta"):
        require_interactive(max_age=max_age.total_seconds())  # type: ignore[arg-type]


def test_an_age_without_a_login_is_refused_while_starting() -> None:
    with pytest.raises(ConfigurationError, match="Use require_interactive"):
        Policy(max_age=HOUR)


def test_the_text_of_a_policy_names_its_requirements() -> None:
    assert require("a", "b") == Policy(frozenset({"a", "b"}))
    assert require_interactive("a", max_age=SECOND) == Policy(frozenset({"a"}), True, SECOND)
    assert Policy() == require()


def test_a_local_principal_has_all_permissions_and_is_no_person() -> None:
    owner = Owner("ann", frozenset({"write"}), "Ann")
    caller = local_principal(owner, at=NOW)
    assert caller == Principal(owner, TOKEN, owner.permissions, NOW)
    assert (caller.user, caller.is_interactive, caller.key_id) == ("Ann", False, None)
    assert outcome(require("write"), caller) is None
    assert outcome(LOGIN, caller) == "interactive_required"


def test_a_key_and_other_credentials_without_a_person_are_told_apart() -> None:
    script = local_principal(Owner("ann", frozenset({"write"}), "Ann"), at=NOW)
    for caller, message in (
        (principal(API_KEY), "API keys cannot be used"),
        (script, "is a machine's"),
    ):
        with pytest.raises(InteractiveRequired, match=message):
            LOGIN.check(caller, NOW)


def test_a_local_principal_is_interactive_where_the_command_says_so() -> None:
    owner = Owner("ann", frozenset({"write"}), "Ann")
    caller = local_principal(owner, at=NOW, interactive=True)
    assert outcome(FRESH_WRITE, caller) is None
    assert caller == Principal(owner, INTERACTIVE, owner.permissions, NOW)
    # Only the value True: a text from a setting is none.
    no_person: Any = "false"
    assert not local_principal(owner, at=NOW, interactive=no_person).is_interactive


@pytest.mark.parametrize(
    ("kind", "expected"), [(INTERACTIVE, True), (API_KEY, False), (TOKEN, False)]
)
def test_a_principal_knows_whether_a_person_logged_in(kind: CredentialKind, expected: bool) -> None:
    assert replace(principal(), kind=kind).is_interactive is expected


# A bare guard is not a master key (G4).

SCOPED = replace(principal(API_KEY, "read"), scopes=frozenset({"read"}))
WITHOUT = replace(principal(API_KEY), scopes=frozenset[str]())
WHOLE = principal(API_KEY, "read", "write")
PERSON = replace(principal(INTERACTIVE, "read"), scopes=frozenset({"read"}))
MACHINE = replace(principal(TOKEN, "read"), scopes=frozenset({"read"}))

# The answers to a key with one scope, with no scopes and without scopes of its own; to a person and a machine with a grant.
LIMITED = [
    (ANY, (DENIED, DENIED, None, DENIED, DENIED)),
    (any_credential(), (None, None, None, None, None)),
    (READ, (None, DENIED, None, None, None)),
    (LOGIN, (NO_LOGIN, NO_LOGIN, NO_LOGIN, None, NO_LOGIN)),
    (require_interactive("read"), (NO_LOGIN, NO_LOGIN, NO_LOGIN, None, NO_LOGIN)),
    (LOGIN_WRITE, (NO_LOGIN, NO_LOGIN, NO_LOGIN, DENIED, NO_LOGIN)),
    (ANY_LOGIN, (NO_LOGIN, NO_LOGIN, NO_LOGIN, DENIED, DENIED)),
    (require_login("read"), (NO_LOGIN, NO_LOGIN, NO_LOGIN, None, None)),
    (KEY, (DENIED, DENIED, None, NO_KEY, NO_KEY)),
    (KEY_READ, (None, DENIED, None, NO_KEY, NO_KEY)),
]


@pytest.mark.parametrize(("policy", "answers"), LIMITED)
def test_a_key_with_scopes_passes_where_a_permission_is_named_or_any_credential_will_do(
    policy: Policy, answers: tuple[str | None, ...]
) -> None:
    """And a token with grants as well: a person's as a login."""
    callers = (SCOPED, WITHOUT, WHOLE, PERSON, MACHINE)
    assert tuple(outcome(policy, caller) for caller in callers) == answers


@pytest.mark.parametrize(
    ("caller", "detail"),
    [
        (SCOPED, "use a key without scopes"),
        (MACHINE, "This token is limited to its grants"),
        (PERSON, "This token is limited to its grants"),
    ],
)
def test_the_refusal_says_what_to_do(caller: Principal[str], detail: str) -> None:
    with pytest.raises(PermissionDenied) as caught:
        ANY.check(caller, NOW)
    assert caught.value.challenge() == {"error": "insufficient_scope"}
    assert detail in caught.value.detail
    assert caught.value.required == ()


@pytest.mark.parametrize(
    "more", [{"permissions": {"read"}}, {"interactive": True}, {"key": True}, {"login": True}]
)
def test_any_credential_demands_nothing_else(more: dict[str, Any]) -> None:
    # Made here: `make mutants` does not see what the tables above make while they are imported.
    any_credential().check(SCOPED, NOW)
    with pytest.raises(ConfigurationError, match="any_credential demands nothing else"):
        Policy(any_credential=True, **more)


@pytest.mark.parametrize("two", [*itertools.combinations(["interactive", "login", "key"], 2)])
def test_a_policy_for_two_kinds_is_refused_at_start(two: tuple[str, str]) -> None:
    require_key().check(WHOLE, NOW)
    with pytest.raises(ConfigurationError, match="a policy cannot require two of them"):
        Policy(**dict.fromkeys(two, True))  # type: ignore[arg-type]


def test_a_guard_for_keys_needs_the_permissions_that_it_names() -> None:
    # Made here, for the same reason.
    require_key("read").check(SCOPED, NOW)
    with pytest.raises(PermissionDenied) as caught:
        require_key("read", "write").check(SCOPED, NOW)
    assert caught.value.required == ("read", "write")


def test_each_guard_demands_what_it_is_given() -> None:
    assert require_login("a", "b") == Policy(frozenset({"a", "b"}), login=True)
    limited = require_key("a", any_resource=True)
    assert limited == Policy(frozenset({"a"}), key=True, any_resource=True)


def test_a_policy_that_says_nothing_of_keys_is_bare() -> None:
    assert Policy().is_bare is require().is_bare is True
    for says_more in (
        require("tasks:read"),
        require(resource="task:42"),
        require(any_resource=True),
        any_credential(),
        require_interactive(),
        require_login(),
        require_key(),
    ):
        assert says_more.is_bare is False
    assert named_first([ANY, KEY]) == [KEY, ANY]


@given(st.permutations([ANY, READ, BOTH, LOGIN, any_credential()]))
def test_bare_policies_are_checked_last_whatever_their_order(policies: list[Policy]) -> None:
    assert named_first(policies)[-1] == ANY
    assert [each for each in named_first(policies) if not each.is_bare] == [
        each for each in policies if not each.is_bare
    ]


@pytest.mark.parametrize("given", ["msk_secret", None, {"kind": "interactive"}, object()])
def test_what_is_no_principal_is_refused_without_its_value(given: Any) -> None:
    for policy in (require(), any_credential(), require_interactive("a")):
        with pytest.raises(ConfigurationError, match="is not a Principal") as raised:
            policy.check(given, NOW)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (require(), "an API key or a login token"),
        (require("a"), "an API key or a login token"),
        (any_credential(), "an API key or a login token"),
        (require_interactive("a"), "not an API key"),
        (require_interactive(max_age=timedelta(hours=1)), "not an API key"),
        (require_login("a"), "not an API key"),
        (require_key("a"), "for API keys only"),
    ],
)
def test_a_request_without_credentials_is_told_which_kind_would_do(
    policy: Policy, words: str
) -> None:
    problem = policy.credentials_missing()
    assert (problem.status, problem.code, problem.challenge()) == (401, "credentials_missing", {})
    assert words in problem.detail
    # It names the kind of credential, and no permission.
    assert "permission" not in problem.detail
