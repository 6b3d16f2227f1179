"""The application's own logins: who is asked about which credential, and what each result of a function means."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from tests.cases import case, refused_with
from tests.core.support import (
    MICROSECOND,
    NOW,
    SECOND,
    MakeWorld,
    World,
    b64,
    sign,
    token,
    valid_claims,
    valid_header,
)

from msk_auth import CredentialKind, KeyFormat, Login, Owner, Session, require_interactive
from msk_auth.core.logins import OpaqueToken, RequestLogins, name_of
from msk_auth.errors import (
    ConfigurationError,
    CredentialRefused,
    CredentialsMissing,
    InteractiveRequired,
    LoginTooOld,
    RequestMalformed,
    StoreUnavailable,
)

HOUR = timedelta(hours=1)
# Shapes of credentials that applications have: random text, itsdangerous, a JWT of their own, an encrypted one.
OPAQUE = "3d1f9c5b7a"
NESTED = "[" * 500 + "]" * 500
OWN_JWT = sign({"alg": "HS256", "typ": "JWT"}, {"sub": "7", "custom": [1]})
CREDENTIALS = [OPAQUE, "eyJzIjoxfQ.Zx1.c2ln", OWN_JWT, "a.b.c.d.e", "a.b", "YWJj=", "msk-7", "ms_k"]


class Logins:
    """Functions of an application, which note what they are asked."""

    def __init__(self, **known: object) -> None:
        self.known = known
        self.asked: list[str] = []

    def find(self, credential: str) -> Any:
        self.asked.append(credential)
        answer = self.known.get(credential)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def find_async(self, credential: str) -> Any:
        return self.find(credential)


@pytest.fixture
def logins() -> Logins:
    return Logins(**{credential: Login("ann") for credential in CREDENTIALS})


@pytest.fixture
def world(logins: Logins) -> World:
    return World("sync", logins=[logins.find])


@pytest.mark.parametrize("kind", ["blocking", "plain", "awaited"])
def test_a_function_is_called_with_the_credential_and_its_login_is_a_person(
    kind: str, logins: Logins
) -> None:
    """A function under the authenticator that blocks; one of either kind under the one that awaits."""
    find = logins.find_async if kind == "awaited" else logins.find
    with closing(World("sync" if kind == "blocking" else "async", logins=[find])) as world:
        enter_with_each(world, logins)


def enter_with_each(world: World, logins: Logins) -> None:
    for credential in CREDENTIALS:
        principal = world.enter(credential)
        assert principal.kind is CredentialKind.INTERACTIVE
        assert (principal.owner.id, principal.permissions) == (
            "ann",
            world.owners["ann"].permissions,
        )
        assert (principal.authenticated_at, principal.session_id) == (None, None)
        assert (principal.key_id, principal.expires_at, principal.identity) == (None, None, None)
        assert logins.asked == [credential]
        logins.asked.clear()
    logins.known.clear()
    with refused_with("token_invalid"):
        world.enter(OPAQUE)


def test_a_known_age_is_compared(world: World, logins: Logins) -> None:
    logins.known[OPAQUE] = Login("ann", authenticated_at=NOW - HOUR)
    principal = world.enter(OPAQUE)
    world.auth.authorize(principal, require_interactive(max_age=HOUR))
    with pytest.raises(LoginTooOld):
        world.auth.authorize(principal, require_interactive(max_age=HOUR - MICROSECOND))


@pytest.mark.parametrize("interactive", [False, None, 1, "yes"])
def test_only_true_makes_a_person(world: World, logins: Logins, interactive: Any) -> None:
    logins.known[OPAQUE] = Login("ann", interactive=interactive)
    principal = world.enter(OPAQUE)
    assert principal.kind is CredentialKind.TOKEN
    with pytest.raises(InteractiveRequired):
        world.call("create_key", principal, name="ci")


def test_a_credential_that_no_function_knows_is_refused(world: World, logins: Logins) -> None:
    logins.known.clear()
    for credential in CREDENTIALS:
        with refused_with("token_invalid"):
            world.enter(credential)
        assert logins.asked.pop() == credential


def test_a_key_is_never_handed_to_a_function(world: World, logins: Logins) -> None:
    key = world.create().value.reveal()
    unknown = KeyFormat().generate().reveal()
    logins.known = {each: Login("ann") for each in (key, unknown, key[:-1], "msk_", "msk_a.b.c")}
    assert world.enter(key).kind is CredentialKind.API_KEY
    for credential in (key[:-1], key + "a", "msk_", "msk_a.b.c"):
        with refused_with("key_malformed"):
            world.enter(credential)
    assert logins.asked == []


@pytest.mark.parametrize("change", [{}, {"exp": 1}, {"aud": "another"}, {"sid": None}])
def test_a_token_of_an_issuer_is_never_handed_to_a_function(
    world: World, logins: Logins, change: dict[str, Any]
) -> None:
    credential = token(**change)
    logins.known[credential] = Login("bob")
    with suppress(CredentialRefused):
        assert world.enter(credential).owner.id == "ann"
    assert logins.asked == []


ISSUED = token()
# Its claims have characters in which the two alphabets differ.
OF_URLS = sign(valid_header(), json.dumps(valid_claims(jti="\u00ff" * 9), ensure_ascii=False))
SPELLINGS = {
    "padded": ISSUED + "=",
    "padded twice": ISSUED + "==",
    "bits that no byte has": ISSUED[:-1] + chr(ord(ISSUED[-1]) + 1),
    "a character outside of the alphabet": ISSUED[:-1] + "~" + ISSUED[-1],
    "padded, in the alphabet of URLs": OF_URLS + "=",
    "the other alphabet": OF_URLS.replace("_", "/"),
    "no signature": ISSUED.rpartition(".")[0] + ".",
    "claims that are padded inside": ISSUED.replace(".", "~.", 2),
    "a member given twice": sign(valid_header(), '{"iss": "x",' + json.dumps(valid_claims())[1:]),
    "nested": sign(valid_header(), json.dumps(valid_claims())[:-1] + ', "x": ' + NESTED + "}"),
    "nested beyond recursion": sign("[" * 2000, valid_claims()),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_spelling_of_a_token_of_an_issuer_is_handed_to_a_function(
    world: World, logins: Logins, spelling: str
) -> None:
    credential = SPELLINGS[spelling]
    assert credential != ISSUED
    logins.known[credential] = Login("bob")
    with refused_with("token_invalid"):
        world.enter(credential)
    assert logins.asked == []


@pytest.mark.parametrize("tokens", [True, False], ids=["with tokens", "without"])
@pytest.mark.parametrize("index", [0, 1], ids=["header", "claims"])
def test_a_credential_that_is_nested_deep_is_handed_to_no_function(
    index: int, tokens: bool, caplog: pytest.LogCaptureFixture
) -> None:
    known = Logins()
    world = World("sync", logins=[known.find], **({} if tokens else {"tokens": []}))
    for nested in (NESTED, "[" * 2000 + "]" * 2000):
        parts = ['{"alg": "HS256"}', '{"sub": "7"}']
        parts[index] = parts[index][:-1] + f', "x": {nested}}}'
        with refused_with("token_invalid"):
            world.enter(sign(*parts))
    assert (known.asked, caplog.records) == ([], [])


@pytest.mark.parametrize("raw", [b"{" * 40, b"[]" * 20, b'{"iss": ' + b"[" * 40, b'["iss"]'])
def test_what_only_resembles_a_nested_token_is_handed_to_the_functions(
    world: World, logins: Logins, raw: bytes
) -> None:
    credential = f"{b64(raw)}.{b64(raw)}"
    logins.known[credential] = Login("ann")
    assert world.enter(credential).owner.id == "ann"


def test_without_a_bearer_credential_no_function_is_asked(world: World, logins: Logins) -> None:
    for header in ([], ["Basic YTpi"], [""]):
        with pytest.raises(CredentialsMissing):
            world.call("authenticate", header)
    for header in (
        ["Bearer"],
        ["Bearer a b"],
        ["Bearer a", "Bearer b"],
        ["Bearer " + "a" * 16_384],
    ):
        with pytest.raises(RequestMalformed):
            world.call("authenticate", header)
    assert logins.asked == []


def test_the_first_function_that_knows_it_decides(make_world: MakeWorld) -> None:
    first, second, third = Logins(), Logins(), Logins()
    second.known[OPAQUE] = Login("bob")
    third.known[OPAQUE] = Login("ann")
    world = make_world(logins=[first.find, second.find, third.find])
    assert world.enter(OPAQUE).owner.id == "bob"
    assert (first.asked, second.asked, third.asked) == ([OPAQUE], [OPAQUE], [])


@pytest.mark.parametrize(
    "problem",
    [
        CredentialRefused("token_invalid"),
        CredentialRefused("token_expired"),
        CredentialRefused("token_revoked"),
    ],
)
def test_a_problem_of_a_function_is_the_answer(make_world: MakeWorld, problem: Exception) -> None:
    first, second = Logins(**{OPAQUE: problem}), Logins(**{OPAQUE: Login("ann")})
    world = make_world(logins=[first.find, second.find])
    with pytest.raises(type(problem)):
        world.enter(OPAQUE)
    assert second.asked == []


@pytest.mark.parametrize(
    "error", [ValueError(OPAQUE), KeyError(OPAQUE), OSError(OPAQUE), StopIteration(OPAQUE)]
)
def test_an_exception_is_503_and_logged_once_without_the_credential(
    make_world: MakeWorld, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Logins(**{OPAQUE: error}), Logins(**{OPAQUE: Login("ann")})
    world = make_world(logins=[first.find, second.find])
    with pytest.raises(StoreUnavailable):
        world.enter(OPAQUE)
    assert second.asked == []
    record = only(caplog)
    assert OPAQUE not in caplog.text
    if not isinstance(error, StopIteration):  # Python turns it into a RuntimeError
        assert f"Logins.find raised {type(error).__name__} at {__file__}:" in record.getMessage()
    assert record.exc_info is None


@pytest.mark.parametrize(
    "answer", [True, False, "ann", {"owner_id": "ann"}, Owner("ann", (), 0), 0]
)
def test_any_other_result_is_503_and_says_what_to_return(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Logins(**{OPAQUE: answer}), Logins(**{OPAQUE: Login("ann")})
    world = World("sync", logins=[first.find, second.find])
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            world.enter(OPAQUE)
    assert second.asked == []
    assert OPAQUE not in caplog.text
    message = only(caplog).getMessage()
    assert f"Logins.find returned {type(answer).__name__}." in message
    assert "Let it return Login(…), or None" in message


def test_a_blocking_authenticator_awaits_nothing() -> None:
    # A lambda hides from validation that its result has to be awaited.
    world = World("sync", logins=[lambda credential: Logins().find_async(credential)])
    with pytest.raises(StoreUnavailable):
        world.enter(OPAQUE)


@pytest.mark.parametrize("credential", [OPAQUE, OWN_JWT], ids=["opaque", "jwt"])
def test_a_login_that_has_ended_is_refused(world: World, logins: Logins, credential: str) -> None:
    logins.known[credential] = Login("ann", valid_until=NOW + SECOND)
    assert world.enter(credential).expires_at == NOW + SECOND
    world.clock.advance(SECOND)
    with refused_with("token_expired"):
        world.enter(credential)


def test_a_login_of_the_future_is_a_mistake(world: World, logins: Logins) -> None:
    logins.known[OPAQUE] = Login("ann", authenticated_at=NOW + timedelta(minutes=1))
    assert world.enter(OPAQUE).owner.id == "ann"
    logins.known[OPAQUE] = Login("ann", authenticated_at=NOW + timedelta(minutes=1) + MICROSECOND)
    with pytest.raises(StoreUnavailable):
        world.enter(OPAQUE)


def test_the_session_that_a_login_names_is_looked_up(world: World, logins: Logins) -> None:
    logins.known[OPAQUE] = Login("ann", session_id="s1")
    assert world.enter(OPAQUE).session_id == "s1"
    for session in (
        None,
        Session("s1", "bob"),
        Session("s1", "ann", ended_at=NOW),
        Session("s1", "ann", expires_at=NOW),
    ):
        world.sessions["s1"] = session
        with refused_with("token_revoked"):
            world.enter(OPAQUE)


def test_without_find_session_the_name_is_kept() -> None:
    known = Logins(**{OPAQUE: Login("ann", session_id="s9")})
    world = World("sync", logins=[known.find], find_session=None)
    assert world.enter(OPAQUE).session_id == "s9"


def test_the_owner_of_a_login_is_read_anew(world: World, logins: Logins) -> None:
    logins.known[OPAQUE] = Login("ann", authenticated_at=NOW - HOUR)
    world.owners["ann"] = Owner("ann", {"tasks:read"}, "Ann")
    assert world.enter(OPAQUE).permissions == {"tasks:read"}
    for owner in (
        None,
        Owner("ann", (), "Ann", disabled=True),
        Owner("ann", (), "a successor", since=NOW),
    ):
        world.owners["ann"] = owner
        with refused_with("token_revoked"):
            world.enter(OPAQUE)


def test_without_issuers_every_jwt_is_for_the_functions() -> None:
    credential = token()
    known = Logins(**{credential: Login("bob")})
    world = World("sync", logins=[known.find], tokens=[])
    assert world.enter(credential).owner.id == "bob"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"owner_id": 7}, "not int. Write Login(str(user.id))"),
        ({"owner_id": ""}, "Login.owner_id"),
        ({"owner_id": None}, "not NoneType"),
        ({"owner_id": "7", "session_id": 7}, "not int. Write session_id=str(session.id)"),
        ({"owner_id": "7", "session_id": ""}, "Login.session_id"),
        ({"owner_id": "7", "authenticated_at": datetime(2026, 1, 1)}, "Login.authenticated_at"),  # noqa: DTZ001
        ({"owner_id": "7", "authenticated_at": 1_700_000_000}, "fromtimestamp(seconds, UTC)"),
        ({"owner_id": "7", "valid_until": datetime(2026, 1, 1)}, "Login.valid_until"),  # noqa: DTZ001
        ({"owner_id": "7", "valid_until": True}, "Login.valid_until"),
    ],
)
def test_a_login_says_what_is_wrong_with_it(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Login(**arguments)
    assert sentence in str(caught.value)


def test_a_wrong_login_in_a_function_is_503_with_its_sentence(
    make_world: MakeWorld,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def find_by_number(_: str) -> Login:
        return Login(7)  # type: ignore[arg-type]

    world = make_world(logins=[find_by_number])
    with pytest.raises(StoreUnavailable):
        world.enter(OPAQUE)
    assert "find_by_number: Login.owner_id must be the id of an Owner" in only(caplog).getMessage()


# A login elsewhere in the request.


def ask(world: World, header: list[str], *functions: Callable[[object], object]) -> Any:
    return world.call("authenticate", header, RequestLogins(functions, "request"))


def test_without_a_bearer_credential_the_rest_of_the_request_is_asked() -> None:
    world = World("sync")
    none, ann, bob = (Logins(request=each) for each in (None, Login("ann"), Login("bob")))
    for header in ([], [""], ["Basic YTpi"]):
        principal = ask(world, header, none.find, ann.find, bob.find)
        assert (principal.owner.id, principal.kind) == ("ann", CredentialKind.INTERACTIVE)
    assert bob.asked == []
    with pytest.raises(CredentialsMissing):
        ask(world, [], none.find)
    in_session = Logins(request=Login("ann", session_id="s1"))
    world.sessions["s1"] = Session("s1", "ann", expires_at=NOW + SECOND)
    assert ask(world, [], in_session.find).session_id == "s1"
    world.clock.advance(SECOND)
    with refused_with("token_revoked"):
        ask(world, [], in_session.find)


def test_a_login_elsewhere_in_a_request_of_another_site_does_not_count(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    for login, code in ((Login("ann"), "cross_origin_refused"), (None, "credentials_missing")):
        asked = RequestLogins([Logins(request=login).find], "request", is_foreign=True)
        with refused_with(code):
            world.call("authenticate", [], asked)


# What a header may hold, with what comes of it whatever else the request has.
HEADERS: dict[str, str | None] = {
    "Bearer": "request_malformed",
    "Bearer a b": "request_malformed",
    "Bearer <key>, Bearer <key>": "request_malformed",
    "Bearer msk_nonsense": "key_malformed",
    f"Bearer {OWN_JWT}": "token_invalid",
    "Bearer nonsense": "key_malformed",
    "Bearer <jwt>": None,
    "Bearer <key>": None,
}


def test_a_header_decides_alone_whatever_the_request_has() -> None:
    world, source = World("sync"), Logins(request=Login("bob"))
    key = world.create().value.reveal()
    for header, refusal in HEADERS.items():
        sent = header.replace("<key>", key).replace("<jwt>", token())
        with case(header):
            if refusal is None:
                assert ask(world, [sent], source.find).owner.id == "ann"
            else:
                with refused_with(refusal):
                    ask(world, [sent], source.find)
    assert source.asked == []


# Under a lease.

LEASE = timedelta(seconds=2)


@pytest.fixture
def leasing(make_world: MakeWorld, logins: Logins) -> World:
    return make_world(logins=[logins.find], lease=LEASE, on_event=None)


def test_under_a_lease_a_login_without_an_end_is_verified_for_each_request(
    leasing: World, logins: Logins
) -> None:
    for _ in range(3):
        leasing.enter(OPAQUE)
    assert len(logins.asked) == 3
    assert leasing.asked_owners == ["ann"] * 3
    assert leasing.auth.cached_principal([f"Bearer {OPAQUE}"]) is None


def test_under_a_lease_a_login_is_reused_until_the_end_that_it_names(
    leasing: World, logins: Logins
) -> None:
    logins.known[OPAQUE] = Login("ann", valid_until=NOW + SECOND)
    for _ in range(3):
        leasing.enter(OPAQUE)
    assert logins.asked == [OPAQUE]
    leasing.clock.advance(SECOND)
    with refused_with("token_expired"):
        leasing.enter(OPAQUE)
    assert len(logins.asked) == 2


def test_a_lease_on_a_login_ends_with_the_lease_and_with_its_session(
    leasing: World, logins: Logins
) -> None:
    logins.known[OPAQUE] = Login("ann", session_id="s1", valid_until=NOW + HOUR)
    leasing.enter(OPAQUE)
    leasing.clock.advance(LEASE - MICROSECOND)
    leasing.enter(OPAQUE)
    assert len(logins.asked) == 1
    leasing.clock.advance(MICROSECOND)
    leasing.sessions["s1"] = Session("s1", "ann", expires_at=leasing.clock.moment + SECOND)
    leasing.enter(OPAQUE)
    assert len(logins.asked) == 2
    leasing.clock.advance(SECOND)
    with refused_with("token_revoked"):
        leasing.enter(OPAQUE)


def test_spellings_of_one_login_evict_no_entry_of_another_credential(
    make_world: MakeWorld,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("msk_auth.leases.MAX_ENTRIES", 80)

    def lenient(credential: str) -> Login | None:
        # As decoders of base64 do that ignore what is not of their alphabet.
        name = credential.replace("~", "")
        return Login(name, valid_until=NOW + HOUR) if name in ("ann", "bob") else None

    world = make_world(logins=[lenient], lease=LEASE, on_event=None)
    others = ["bob", *(world.create().value.reveal() for _ in range(5)), token(), token(jti="2")]
    for credential in others:
        world.enter(credential)
    spellings = ["ann" + "~" * number for number in range(200)]
    for spelling in spellings:
        world.enter(spelling)
    kept = [world.auth.cached_principal([f"Bearer {each}"]) for each in (*others, *spellings)]
    assert [principal is not None for principal in kept] == (
        [True] * len(others) + [False] * 136 + [True] * 64
    )


@pytest.mark.parametrize("narrow", ["session", "owner"])
def test_what_a_login_names_is_refused_once_the_wait_returned(
    leasing: World, logins: Logins, narrow: str
) -> None:
    logins.known[OPAQUE] = Login("ann", session_id="s1", valid_until=NOW + HOUR)
    leasing.enter(OPAQUE)
    if narrow == "session":
        leasing.sessions["s1"] = Session("s1", "ann", ended_at=NOW)
    else:
        leasing.owners["ann"] = Owner("ann", (), "Ann", disabled=True)
    # The lease that was granted before may be used while the call waits, and not after it.
    leasing.enter(OPAQUE)
    leasing.call("await_lease_expiry")
    assert leasing.clock.slept[-1] >= LEASE.total_seconds()
    with refused_with("token_revoked"):
        leasing.enter(OPAQUE)


def test_no_lease_covers_a_login_found_elsewhere_in_the_request(leasing: World) -> None:
    known = Logins(request=Login("ann", valid_until=NOW + HOUR))
    for _ in range(2):
        ask(leasing, [], known.find)
    assert len(known.asked) == 2


def test_a_cancelled_request_is_no_answer(world: World, logins: Logins) -> None:
    logins.known[OPAQUE] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        world.enter(OPAQUE)


def test_no_text_shows_a_credential() -> None:
    secret = OpaqueToken(OPAQUE)
    asked = RequestLogins([Logins().find], OPAQUE)
    for shown in (repr(secret), str(secret), repr(asked), str(asked), f"{asked}"):
        assert OPAQUE not in shown
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert secret.reveal() == OPAQUE


@pytest.mark.parametrize(
    ("function", "name"),
    [(Logins().find, "Logins.find"), (partial(print), "partial"), (Logins, "Logins")],
)
def test_a_function_is_called_by_its_name(function: Any, name: str) -> None:
    assert name_of(function) == name
    assert repr(RequestLogins([function] * 2, "")) == f"<RequestLogins {name}, {name}>"


def only(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    [record] = caplog.records
    return record
