"""Authentication from header to principal: what is checked, in which order, and the answer to each outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case, refused_with
from tests.contract.world import checksum
from tests.core.support import (
    MICROSECOND,
    NOW,
    OTHER_SECRET,
    SECRET,
    MakeWorld,
    World,
    functions_called,
    token,
)
from tests.core.test_digest import FakeSlow

from msk_auth import CredentialKind, KeyFormat, KeyHasher, Owner, PepperRing, Principal, Session
from msk_auth.errors import (
    ConfigurationError,
    CredentialRefused,
    CredentialsMissing,
    Problem,
    RequestMalformed,
    StoreUnavailable,
)
from msk_auth.events import CredentialUsed, Refusal
from msk_auth.http.admission import loaded_user

DAY = timedelta(days=1)


def refusal_of(world: World, credential: str) -> Problem:
    """The refusal of a credential, which must be reported once and leave nothing behind."""
    world.call("flush")
    world.forget_calls()
    with pytest.raises(Problem) as refused:
        world.enter(credential)
    (event,) = world.events
    key_id = refused.value.key_id if isinstance(refused.value, CredentialRefused) else None
    assert event == Refusal(world.clock.moment, refused.value.code, key_id)
    world.call("flush")
    assert "touch" not in world.store.calls
    return refused.value


# Nothing, and what is no credential of ours.


@pytest.mark.parametrize("headers", [[], [""], ["Basic abc"]])
def test_the_refusal_without_credentials_names_the_header_to_send(
    world: World, headers: list[str]
) -> None:
    with pytest.raises(CredentialsMissing) as refused:
        world.call("authenticate", headers)
    assert refused.value.challenge() == {}
    assert world.events == [Refusal(NOW, "credentials_missing", None)]
    assert (world.store.calls, world.asked_owners) == ([], [])


@pytest.mark.parametrize("headers", [["Bearer"], ["Bearer a b"], ["Bearer x"] * 2, [b"\xff"]])
def test_a_broken_header_is_malformed(world: World, headers: list[Any]) -> None:
    with pytest.raises(RequestMalformed):
        world.call("authenticate", headers)
    assert world.events == [Refusal(NOW, "request_malformed", None)]
    assert (world.store.calls, world.asked_owners) == ([], [])


@pytest.mark.parametrize(
    "credential",
    [
        "x",
        "msk",
        "msk_",
        "msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9P",
        "MSK_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O",
        "other_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O",
        "msk_.a.b",
        "msk_" + "A" * 8000,
        "sha256",
    ],
)
def test_garbage_is_refused_without_touching_the_store(world: World, credential: str) -> None:
    # Guarantee G7.
    assert refusal_of(world, credential).code == "key_malformed"
    assert (world.store.calls, world.asked_owners) == ([], [])


@pytest.mark.parametrize("credential", [".", "a.b", "a.b.c", "..", f"{token()}."])
def test_what_has_dots_is_refused_as_a_token(world: World, credential: str) -> None:
    assert refusal_of(world, credential).code == "token_invalid"
    assert (world.store.calls, world.asked_owners) == ([], [])


# Keys.


def test_a_key_acts_as_its_owner(make_world: MakeWorld) -> None:
    world = make_world()
    created = world.create()
    world.forget_calls()
    principal = world.enter(created.value.reveal())
    assert principal == Principal(
        world.owners["ann"],
        CredentialKind.API_KEY,
        world.owners["ann"].permissions,
        authenticated_at=NOW,
        key_id=created.record.id,
    )
    assert principal.user == "Ann"
    assert world.store.calls == ["find"]
    assert world.asked_owners == ["ann"]
    assert world.events == [CredentialUsed(NOW, principal)]


def with_wrong_secret(world: World, key_id: str) -> str:
    """A well-formed key of this id with a secret of its own."""
    other = world.auth.rules.key_format.generate().reveal()
    body = f"msk_{key_id}_{other[17:49]}"
    return body + checksum(body)


def test_an_unknown_key_and_a_wrong_secret_are_indistinguishable(world: World) -> None:
    wrong = with_wrong_secret(world, world.create().record.id)
    answers, calls = [], []
    for credential in (wrong, KeyFormat().generate().reveal()):
        answers.append(refusal_of(world, credential))
        calls.append((world.store.calls.copy(), world.asked_owners.copy()))
    assert [answer.code for answer in answers] == ["key_unknown", "key_unknown"]
    assert answers[0].detail == answers[1].detail
    assert answers[0].challenge() == answers[1].challenge()
    assert calls == [(["find"], [])] * 2


@pytest.mark.parametrize("lease", [None, timedelta(seconds=1)])
def test_an_unknown_key_and_a_wrong_secret_take_the_same_steps(
    make_world: MakeWorld, lease: timedelta | None
) -> None:
    """Function by function, with and without a lease, presented to be accepted or to be revoked."""
    world = make_world(lease=lease)
    wrong = with_wrong_secret(world, world.create().record.id)
    unknown = KeyFormat().generate().reveal()
    for work in (refusal_of, lambda _, key: world.call("revoke_presented_key", key)):
        for key in (wrong, unknown):
            work(world, key)
        steps = functions_called(lambda: work(world, wrong))  # noqa: B023 - called at once
        assert ("call", "verify_key") in steps
        assert functions_called(lambda: work(world, unknown)) == steps  # noqa: B023


@pytest.mark.parametrize("accept_unpeppered", [True, False])
@pytest.mark.parametrize("earlier", ["older pepper", "retired pepper", "no pepper"])
def test_a_wrong_secret_of_a_record_of_an_earlier_scheme_takes_the_same_steps(
    earlier: str, *, accept_unpeppered: bool
) -> None:
    older = PepperRing({"1": SECRET}, current="1")
    peppers = {"2": OTHER_SECRET} | ({"1": SECRET} if earlier == "older pepper" else {})
    ring = PepperRing(peppers, current="2")
    world = World("sync", hasher=KeyHasher(ring, accept_unpeppered=accept_unpeppered))
    created = world.create()
    maker = KeyHasher(None if earlier == "no pepper" else older)
    world.store.put(replace(created.record, digest=maker.digest(created.value.reveal())))
    wrong = with_wrong_secret(world, created.record.id)
    unknown = KeyFormat().generate().reveal()
    for key in (wrong, unknown):
        refusal_of(world, key)
    steps = functions_called(lambda: refusal_of(world, wrong))
    assert ("c_call", "compare_digest") in steps
    assert functions_called(lambda: refusal_of(world, unknown)) == steps


STATES: dict[str, dict[str, Any]] = {
    "active": {},
    "revoked": {"revoked_at": NOW},
    "expired": {"expires_at": NOW},
    "deleted": {"revoked_at": NOW, "deleted_at": NOW},
}


@pytest.mark.parametrize("state", STATES)
def test_only_a_client_with_the_right_secret_learns_the_state_of_a_key(
    world: World, state: str
) -> None:
    created = world.create()
    world.store.put(replace(created.record, **STATES[state]))
    world.owners["ann"] = replace(world.owners["ann"], disabled=True)
    refused = refusal_of(world, with_wrong_secret(world, created.record.id))
    assert refused.code == "key_unknown"
    assert refused.key_id == created.record.id


@pytest.mark.parametrize(
    ("state", "expected"),
    [("revoked", "key_revoked"), ("expired", "key_expired"), ("deleted", "key_revoked")],
)
def test_a_key_that_is_not_active_is_refused_before_its_owner_is_looked_at(
    world: World, state: str, expected: str
) -> None:
    created = world.create()
    world.store.put(replace(created.record, **STATES[state]))
    refused = refusal_of(world, created.value.reveal())
    assert refused.code == expected
    assert refused.key_id == created.record.id
    assert world.asked_owners == []


@pytest.mark.parametrize(
    "owner",
    [None, Owner("ann", frozenset({"tasks:read"}), "Ann", disabled=True)],
    ids=["gone", "disabled"],
)
def test_a_key_whose_owner_is_missing_or_disabled_is_refused(
    make_world: MakeWorld, owner: Any
) -> None:
    world = make_world()
    created = world.create()
    world.owners["ann"] = owner
    refused = refusal_of(world, created.value.reveal())
    assert refused.code == "owner_disabled"
    assert refused.key_id == created.record.id


# A wrong row never decides (guarantee G5): neither for the credential nor against it.


@pytest.mark.parametrize(
    "wrong", [Owner("bob", frozenset({"r"}), "Bob"), Owner("", frozenset(), "")]
)
@pytest.mark.parametrize("disabled", [False, True])
def test_an_owner_with_another_id_decides_nothing(
    make_world: MakeWorld, wrong: Owner[str], disabled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()
    created = world.create()
    world.owners["ann"] = replace(wrong, disabled=disabled)
    for credential in (created.value.reveal(), token()):
        assert type(refusal_of(world, credential)) is StoreUnavailable
    assert "Looking up an owner returned a record with another id" in caplog.text


@dataclass
class AppUser:
    """A user of the application, which its functions may return by mistake."""

    id: str = "ann"
    disabled: bool = False
    permissions: frozenset[str] = frozenset({"r"})


@pytest.mark.parametrize(
    ("function", "kind"), [("find_owner", "Owner"), ("find_session", "Session")]
)
def test_a_function_that_returns_another_type_is_named(
    world: World, function: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers: dict[str, Any] = world.owners if function == "find_owner" else world.sessions
    answers.update(ann=AppUser(), s1=AppUser("s1"))
    assert type(refusal_of(world, token())) is StoreUnavailable
    assert f"{function} returned AppUser. Return {kind} of msk_auth, or None." in caplog.text


def test_a_key_with_another_id_decides_nothing(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """As under a collation that ignores case, or where the answer to another statement is read."""
    world = make_world()
    created, other = world.create(), world.create()
    wrong = replace(created.record, id=other.record.id)
    for answer in (wrong, replace(wrong, revoked_at=NOW), other.record):
        world.store.answers["find"] = answer
        assert type(refusal_of(world, created.value.reveal())) is StoreUnavailable
        for call, *arguments in (
            ("get_key", world.login(), created.record.id),
            ("revoke_presented_key", created.value.reveal()),
        ):
            with pytest.raises(StoreUnavailable):
                world.call(call, *arguments)
    assert caplog.text.count("Looking up a key returned a record with another id") == 9


def test_a_session_with_another_id_decides_nothing(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()
    for wrong in (Session("s2", "ann"), Session("s2", "ann", ended_at=NOW)):
        world.sessions["s1"] = wrong
        assert type(refusal_of(world, token())) is StoreUnavailable
    assert "Looking up a session returned a record with another id" in caplog.text


# Live permissions (guarantee G4): the owner's permissions now, cut down to the key's scopes.


@pytest.mark.parametrize(
    ("owner_now", "scopes", "expected"),
    [
        ({"r", "w"}, None, {"r", "w"}),
        ({"r", "w", "x"}, None, {"r", "w", "x"}),  # a later permission too
        ({"r"}, None, {"r"}),
        (set(), None, set()),
        ({"r", "w"}, {"r"}, {"r"}),
        ({"r", "w"}, {"r", "w"}, {"r", "w"}),
        ({"w"}, {"r"}, set()),
        ({"r", "w", "x"}, {"r"}, {"r"}),
        ({"r", "w"}, set(), set()),
        (set(), set(), set()),
    ],
)
def test_effective_permissions_are_the_owners_now_within_the_scopes(
    world: World, owner_now: set[str], scopes: set[str] | None, expected: set[str]
) -> None:
    world.owners["ann"] = Owner("ann", frozenset({"r", "w"}), "Ann")
    created = world.create(scopes=scopes)
    world.owners["ann"] = Owner("ann", frozenset(owner_now), "Ann")
    assert world.enter(created.value.reveal()).permissions == expected


# Digests.


def test_a_digest_copied_to_the_row_of_another_key_verifies_no_key(world: World) -> None:
    mine, theirs = world.create("bob"), world.create("ann")
    world.store.put(replace(theirs.record, digest=mine.record.digest))
    assert refusal_of(world, theirs.value.reveal()).code == "key_unknown"
    # And a row with the other key's id verifies neither key.
    world.store.put(replace(mine.record, digest=theirs.record.digest))
    assert refusal_of(world, mine.value.reveal()).code == "key_unknown"


def test_the_stored_digest_is_no_credential(world: World) -> None:
    created = world.create()
    for credential in (created.record.digest, created.record.digest[7:], created.value.mask):
        with refused_with("key_malformed", "request_malformed"):
            world.enter(credential)


def test_peppers_rotate_while_keys_are_used(make_world: MakeWorld) -> None:
    old, both, new = (
        KeyHasher(PepperRing(peppers, current=current))
        for peppers, current in (
            ({"1": SECRET}, "1"),
            ({"1": SECRET, "2": OTHER_SECRET}, "2"),
            ({"2": OTHER_SECRET}, "2"),
        )
    )
    world = make_world(hasher=KeyHasher())
    used, unused = world.create(), world.create()

    def restart(hasher: KeyHasher) -> World:
        later = make_world(hasher=hasher)
        later.store.inner = world.store.inner
        return later

    for hasher, prefix in ((old, "hmac-sha256:1:"), (both, "hmac-sha256:2:")):
        step = restart(hasher)
        for _ in range(3):
            step.enter(used.value.reveal())
        step.call("flush")
        assert step.store.calls.count("replace_digest") == 1
        assert step.store.get(used.record.id).digest.startswith(prefix)
        step.enter(used.value.reveal())
        step.call("flush")
        assert step.store.calls.count("replace_digest") == 1
    last = restart(new)
    assert last.enter(used.value.reveal()).key_id == used.record.id
    assert last.enter(unused.value.reveal()).key_id == unused.record.id
    strict = restart(
        KeyHasher(PepperRing({"2": OTHER_SECRET}, current="2"), accept_unpeppered=False)
    )
    assert refusal_of(strict, unused.value.reveal()).code == "key_unknown"


def test_an_upgrade_never_overwrites_a_digest_that_changed_meanwhile() -> None:
    world = World("sync", hasher=KeyHasher(PepperRing({"1": SECRET}, current="1")))
    created = world.create()
    plain = replace(created.record, digest=KeyHasher().digest(created.value.reveal()))
    world.store.put(plain)
    world.enter(created.value.reveal())
    world.store.put(replace(plain, digest="changed"))
    world.call("flush")
    assert world.store.get(created.record.id).digest == "changed"


def test_an_imported_key_with_a_slow_digest_works_and_keeps_it(make_world: MakeWorld) -> None:
    slow = FakeSlow()
    world = make_world(hasher=KeyHasher(slow=slow))
    created = world.create()
    key = created.value.reveal()
    world.store.put(replace(created.record, digest=f"$slow${key[::-1]}"))
    assert world.enter(key).key_id == created.record.id
    assert slow.verified == 1
    world.call("flush")
    assert "replace_digest" not in world.store.calls
    assert refusal_of(world, with_wrong_secret(world, created.record.id)).code == "key_unknown"


@pytest.mark.parametrize("answer", [None, 1, "yes", object()])
def test_a_slow_scheme_that_does_not_return_true_verifies_nothing(answer: object) -> None:
    slow = FakeSlow()
    slow.verify = lambda *_: answer  # type: ignore[method-assign]
    world = World("sync", hasher=KeyHasher(slow=slow))
    created = world.create()
    world.store.put(replace(created.record, digest="$slow$"))
    assert refusal_of(world, created.value.reveal()).code == "key_unknown"


def test_an_application_with_its_own_prefix_accepts_no_other() -> None:
    world = World("sync", key_format=KeyFormat("acme"))
    created = world.create()
    assert created.value.reveal().startswith("acme_")
    assert world.enter(created.value.reveal()).key_id == created.record.id
    assert refusal_of(world, KeyFormat().generate().reveal()).code == "key_malformed"


def test_after_a_change_of_prefix_earlier_keys_still_work() -> None:
    before = World("sync")
    created = before.create()
    after = World("sync", key_format=KeyFormat("acme", older_prefixes=["msk"]))
    after.store.put(created.record)
    assert after.enter(created.value.reveal()).key_id == created.record.id
    assert after.create().value.reveal().startswith("acme_")
    # The same id and secret under the other brand is another key.
    renamed = f"acme{created.value.reveal()[3:-6]}"
    assert refusal_of(after, renamed + checksum(renamed)).code == "key_unknown"


# Login tokens.


def test_a_login_token_acts_as_its_subject(world: World) -> None:
    logged_in = NOW - timedelta(minutes=5)
    principal = world.enter(token(auth_time=int(logged_in.timestamp())))
    assert principal == Principal(
        world.owners["ann"],
        CredentialKind.INTERACTIVE,
        world.owners["ann"].permissions,
        authenticated_at=logged_in,
        session_id="s1",
        expires_at=NOW + timedelta(hours=1),
    )
    assert principal.is_interactive
    assert world.store.calls == []
    assert world.events == [CredentialUsed(NOW, principal)]
    world.call("flush")
    assert world.store.calls == []


def test_an_expired_token_is_refused_as_expired(world: World) -> None:
    world.clock.advance(timedelta(hours=1))
    assert refusal_of(world, token()).code == "token_expired"
    assert world.asked_owners == []


def test_without_a_profile_no_token_is_accepted() -> None:
    assert refusal_of(World("sync", tokens=()), token()).code == "token_invalid"


SESSIONS: dict[str, Any] = {
    "unknown": None,
    "of another owner": Session("s1", "bob"),
    "ended": Session("s1", "ann", ended_at=NOW),
    "ended in the future": Session("s1", "ann", ended_at=NOW + DAY),
    "over this moment": Session("s1", "ann", expires_at=NOW),
    "over": Session("s1", "ann", expires_at=NOW - DAY),
}


@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
def test_a_token_of_a_session_that_is_not_open_is_revoked(
    make_world: MakeWorld, session: Any
) -> None:
    world = make_world()
    world.sessions["s1"] = session
    assert refusal_of(world, token()).code == "token_revoked"
    assert world.asked_owners == []


def test_an_idle_session_is_refused_with_its_reason(world: World) -> None:
    world.sessions["s1"] = Session("s1", "ann", expires_at=NOW)
    assert refusal_of(world, token()).detail == (
        "This login was idle for too long or has reached its maximum age. Log in again."
    )


def test_a_session_is_open_until_its_last_microsecond(world: World) -> None:
    world.sessions["s1"] = Session("s1", "ann", expires_at=NOW + MICROSECOND)
    assert world.enter(token()).session_id == "s1"


def test_a_token_without_a_session_is_refused_where_sessions_are_kept(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    assert refusal_of(world, token(sid=None)).code == "token_invalid"


def test_sessions_are_not_read_without_a_find_session() -> None:
    world = World("sync", find_session=None)
    world.sessions.clear()
    assert world.enter(token()).session_id == "s1"
    assert world.enter(token(sid=None)).session_id is None


@pytest.mark.parametrize(
    "owner",
    [None, Owner("ann", frozenset(), "Ann", disabled=True)],
    ids=["gone", "disabled"],
)
def test_a_token_whose_owner_is_missing_or_disabled_is_revoked(world: World, owner: Any) -> None:
    world.owners["ann"] = owner
    assert refusal_of(world, token()).code == "token_revoked"


def test_a_token_has_its_owners_permissions_now(world: World) -> None:
    world.owners["ann"] = Owner("ann", frozenset({"new"}), "Ann")
    assert world.enter(token(scope="admin:config", permissions=["old"])).permissions == {"new"}


@pytest.mark.parametrize(
    ("credential", "refusal"), [("key", "owner_disabled"), ("token", "token_revoked")]
)
def test_a_principal_without_a_user_is_refused_as_one_whose_owner_is_gone(
    world: World, credential: str, refusal: str
) -> None:
    sent = world.create().value.reveal() if credential == "key" else token()
    principal = world.enter(sent)
    with refused_with(refusal) as refused:
        loaded_user(principal, None)
    assert getattr(refused.value, "key_id", None) == principal.key_id


def test_a_realm_that_would_break_the_challenge_is_refused_while_starting(
    make_world: MakeWorld,
) -> None:
    message = "must be printable ASCII without quotes, such as 'api'"
    for realm in ('a"b', "a\\b", "a\r\nb", "é", "\x00"):
        with case(realm), pytest.raises(ConfigurationError, match=message):
            make_world(realm=realm)


def test_the_realm_is_api_unless_the_application_names_another(make_world: MakeWorld) -> None:
    assert make_world().auth.realm == "api"
    assert make_world(realm="tasks").auth.realm == "tasks"


# Whatever comes in.


def test_no_header_gives_anything_but_a_refusal(world: World) -> None:
    @given(header=st.binary() | st.text() | st.text().map("Bearer {}".format))
    def is_refused(header: str | bytes) -> None:
        with refused_with(
            "credentials_missing", "request_malformed", "key_malformed", "token_invalid"
        ):
            world.call("authenticate", [header])
        assert world.store.calls == []

    is_refused()
