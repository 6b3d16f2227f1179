"""The records: their state at a moment, and that no request can change them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Any, cast

import pytest
from tests.core.support import MICROSECOND, NOW

from msk_auth import ApiKey, KeyStatus, Login, Owner, Policy, Principal, Session
from msk_auth.core.model import revoked, spellings
from msk_auth.errors import ConfigurationError

ACTIVE, REVOKED, EXPIRED = KeyStatus.ACTIVE, KeyStatus.REVOKED, KeyStatus.EXPIRED
RECORD = ApiKey("AAAAAAAAAAAA", "ci", "ann", "sha256:00", None, NOW)
LATER = NOW + timedelta(days=1)


@pytest.mark.parametrize(
    ("expires_at", "revoked_at", "at", "expected"),
    [
        (None, None, NOW, ACTIVE),
        (None, None, NOW + timedelta(days=36_500), ACTIVE),
        (LATER, None, NOW, ACTIVE),
        (LATER, None, LATER - MICROSECOND, ACTIVE),
        (LATER, None, LATER, EXPIRED),
        (LATER, None, LATER + MICROSECOND, EXPIRED),
        (None, NOW, NOW, REVOKED),
        (None, NOW, NOW - MICROSECOND, REVOKED),  # a clock that goes back makes no key active again
        (LATER, NOW, LATER, REVOKED),  # revoked takes precedence over expired
    ],
)
def test_a_key_is_active_until_it_is_revoked_or_its_time_has_come(
    expires_at: datetime | None, revoked_at: datetime | None, at: datetime, expected: KeyStatus
) -> None:
    record = dataclasses.replace(RECORD, expires_at=expires_at, revoked_at=revoked_at)
    assert record.status(at) is expected


def test_revoking_is_final() -> None:
    once = revoked(RECORD, at=NOW)
    assert (once.revoked_at, once.status(NOW)) == (NOW, REVOKED)
    assert revoked(once, at=LATER) is once
    assert RECORD.revoked_at is None


@pytest.mark.parametrize("noun", [ApiKey, Owner, Principal, Session])
def test_records_are_frozen_and_take_no_further_attributes(noun: type) -> None:
    assert noun.__dataclass_params__.frozen
    assert "__dict__" not in dir(noun)


def test_an_owner_has_the_given_attributes() -> None:
    owner = Owner("ann", ["tasks:read"], "Ann", disabled=True, since=NOW)
    assert (owner.id, owner.permissions, owner.user) == ("ann", {"tasks:read"}, "Ann")
    assert (owner.disabled, owner.since) == (True, NOW)
    usual = Owner("ann", [], "Ann")
    assert (usual.disabled, usual.since) == (False, None)


def test_the_id_of_an_owner_is_a_text() -> None:
    message = r"Owner\.id is of type int.*Owner\(str\(user\.id\), …\)"
    with pytest.raises(ConfigurationError, match=message):
        Owner(cast("str", 5), [], "Ann")


def test_the_beginning_of_an_owner_needs_a_time_zone() -> None:
    with pytest.raises(ConfigurationError, match="no time zone"):
        Owner("ann", [], "Ann", since=NOW.replace(tzinfo=None))


# Permissions: a set that cannot change, whatever it was given as.


class OwnSet(frozenset[str]):
    """One to which attributes can be added."""


def of_owner(given: Any) -> object:
    return Owner("ann", given, "Ann").permissions


def of_policy(given: Any) -> object:
    return Policy(given).permissions


HOLDERS = [of_owner, of_policy]
Holder = Callable[[Any], object]


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize(
    "given",
    [
        lambda: ["tasks:read", "tasks:run", "tasks:read"],
        lambda: {"tasks:read", "tasks:run"},
        lambda: (each for each in ("tasks:read", "tasks:run")),
        {"tasks:read": 1, "tasks:run": 2}.keys,
        {1: "tasks:read", 2: "tasks:run"}.values,
        lambda: OwnSet({"tasks:read", "tasks:run"}),
        lambda: frozenset({"tasks:read", "tasks:run"}),
    ],
    ids=["list", "set", "generator", "keys", "values", "subclass", "frozenset"],
)
def test_permissions_are_frozen_whatever_they_were_given_as(
    holder: Holder, given: Callable[[], Iterable[str]]
) -> None:
    frozen = holder(given())
    assert frozen == {"tasks:read", "tasks:run"}
    assert type(frozen) is frozenset


def test_permissions_keep_nothing_of_the_set_that_they_were_given_as() -> None:
    given = {"tasks:read"}
    owner = Owner("ann", given, "Ann")
    given.add("admin")
    assert owner.permissions == {"tasks:read"}
    assert dataclasses.replace(owner, user="Anna").permissions == {"tasks:read"}


def test_a_frozen_set_is_kept_as_it_is() -> None:
    given = frozenset({"tasks:read"})
    assert of_owner(given) is of_policy(given) is given


class Grant(Enum):
    READ = "tasks:read"


class TextGrant(StrEnum):
    READ = "tasks:read"


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("tasks:read", "is one string.* Write {name}={{'tasks:read'}}"),
        (b"tasks:read", "is one string"),
        ({"tasks:read": False}, "is a mapping.* Write the keys that are granted"),
    ],
    ids=repr,
)
def test_what_is_no_set_of_permissions_is_refused(
    holder: Holder, given: object, advice: str
) -> None:
    with pytest.raises(
        ConfigurationError, match=f"^permissions {advice.format(name='permissions')}"
    ):
        holder(given)


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("given", [[1], {Grant.READ}, [None], [b"tasks:read"]], ids=repr)
def test_permissions_are_strings(holder: Holder, given: Iterable[object]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"contain strings, and .* is none.* write its value"
    ):
        holder(given)


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_frozen_set_is_checked_too(holder: Holder) -> None:
    with pytest.raises(ConfigurationError, match="contain strings"):
        holder(frozenset({7}))


def test_a_member_of_a_text_enum_is_a_text() -> None:
    assert of_owner([TextGrant.READ]) == {"tasks:read"}


CLAIMS = {"sub": "ann", "exp": 1_800_000_000, "auth_time": 1_700_000_000, "sid": "s1"}


def test_a_login_by_the_claims_of_a_token() -> None:
    assert Login.from_claims(CLAIMS | {"iat": 1_799_999_000, "role": "admin"}) == Login(
        "ann",
        authenticated_at=datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        session_id="s1",
        valid_until=datetime(2027, 1, 15, 8, tzinfo=UTC),
    )
    assert Login.from_claims({"sub": "ann"}) == Login("ann")


@pytest.mark.parametrize("subject", [None, "", True, 7.0, ["ann"], {"id": "ann"}], ids=repr)
def test_claims_that_name_nobody_are_no_login(subject: object) -> None:
    assert Login.from_claims(CLAIMS | {"sub": subject}) is None


def test_another_claim_may_name_the_owner() -> None:
    claims = CLAIMS | {"sub": "ann@example.org", "user_id": 7}
    login = Login.from_claims(claims, subject="user_id")
    assert login is not None
    assert login.owner_id == "7"
    assert Login.from_claims(CLAIMS, subject="user_id") is None


def test_a_subject_that_is_a_number_is_an_id() -> None:
    # Tokens from before PyJWT 2.10 have it where ids are numbers.
    login = Login.from_claims(CLAIMS | {"sub": 7})
    assert login is not None
    assert login.owner_id == "7"


@pytest.mark.parametrize("moment", [None, True, "1800000000", 10**12, -(10**20), float("nan")])
@pytest.mark.parametrize(
    ("claim", "name"), [("exp", "valid_until"), ("auth_time", "authenticated_at")]
)
def test_a_claim_that_is_no_moment_is_not_known(claim: str, name: str, moment: object) -> None:
    known = Login.from_claims(CLAIMS)
    login = Login.from_claims(CLAIMS | {claim: moment})
    assert known is not None
    assert login == dataclasses.replace(known, **{name: None})


def test_a_moment_may_have_fractions() -> None:
    login = Login.from_claims(CLAIMS | {"exp": 1_800_000_000.5})
    assert login is not None
    assert login.valid_until == datetime(2027, 1, 15, 8, 0, 0, 500_000, tzinfo=UTC)


@pytest.mark.parametrize("session_id", [None, "", 7])
def test_a_sid_that_is_no_text_is_not_known(session_id: object) -> None:
    login = Login.from_claims(CLAIMS | {"sid": session_id})
    assert login is not None
    assert login.session_id is None


def test_a_store_finds_an_owner_under_every_spelling_of_a_uuid_and_the_usual_one_comes_first() -> (
    None
):
    usual = "0f8fad5b-d9cb-469f-a165-70867728950e"
    digits = usual.replace("-", "")
    for spelled in (usual, digits, usual.upper(), digits.upper()):
        found = spellings(spelled)
        assert found[0] == usual
        assert sorted(found) == sorted({usual, digits, usual.upper(), digits.upper()})
    mixed = usual[:-1] + "E"
    assert spellings(mixed)[0] == usual
    assert mixed in spellings(mixed)
    assert spellings("ann") == ["ann"]
