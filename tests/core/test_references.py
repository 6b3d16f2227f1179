"""The text of a reference: it says what `sign` wrote, or it is refused before anything of it is believed.

What an application does with references is in `tests/test_resume.py`.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cases import case, refused_with
from tests.core.support import NOW, OTHER_SECRET, SECRET

from msk_auth import CredentialKind, KeyHasher, Owner, PepperRing, Principal
from msk_auth.core import references
from msk_auth.core.references import DEFAULT_AGE, MAX_AGE, MAX_LENGTH
from msk_auth.errors import ConfigurationError

PEPPERS = PepperRing({"2026": SECRET}, current="2026")
ROTATED = PepperRing({"2026": SECRET, "2027": OTHER_SECRET}, current="2027")
OTHER_APPLICATION = PepperRing({"2026": OTHER_SECRET}, current="2026")
ANN = Owner("ann", frozenset({"tasks:read"}), "Ann")
BY_KEY = Principal(ANN, CredentialKind.API_KEY, ANN.permissions, NOW, key_id="AAAAAAAAAAAA")
BY_LOGIN = Principal(ANN, CredentialKind.INTERACTIVE, ANN.permissions, NOW, session_id="s1")

ids = st.text(min_size=1, max_size=40)
moments = st.integers(0, 7_000_000_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


def kept(
    owner_id: str,
    key_id: str | None = None,
    session_id: str | None = None,
    scopes: frozenset[str] | None = None,
    made_at: datetime | None = None,
    ends_at: datetime | None = None,
) -> Principal[None]:
    """What a reference keeps: ids, and no permission."""
    return Principal(
        Owner(owner_id, (), None),
        CredentialKind.TOKEN if key_id is None else CredentialKind.API_KEY,
        frozenset(),
        made_at,
        key_id=key_id,
        session_id=session_id,
        expires_at=ends_at,
        scopes=scopes,
        resumed=True,
    )


any_reference = st.builds(
    kept,
    ids,
    key_id=st.none() | ids,
    session_id=st.none() | ids,
    scopes=st.none() | st.frozensets(ids, max_size=5),
    made_at=st.none() | moments,
    ends_at=st.none() | moments,
)


def kept_of(principal: Principal[Any], **options: Any) -> Principal[None]:
    settings = {"max_age": DEFAULT_AGE, "has_session": True, "now": NOW, **options}
    return references.kept_of(principal, **settings)


TEXT = references.sign(PEPPERS, kept_of(BY_LOGIN))


@given(any_reference)
def test_a_reference_is_read_as_it_was_written(reference: Principal[None]) -> None:
    text = references.sign(PEPPERS, reference)
    assert text.isascii()
    assert text.isprintable()
    assert references.read(PEPPERS, text) == reference


def test_a_reference_is_small_and_holds_its_ids_only() -> None:
    text = references.sign(PEPPERS, kept_of(BY_KEY))
    assert len(text) < 160
    payload = text.split(":")[2]
    assert base64.urlsafe_b64decode(payload + "==") == b'{"owner":"ann","key":"AAAAAAAAAAAA"}'


@given(st.text() | st.from_regex(references._FORM, fullmatch=True))
def test_any_other_text_is_refused(text: str) -> None:
    with refused_with("reference_invalid"):
        references.read(PEPPERS, text)


@given(st.integers(0, len(TEXT) - 1), st.characters())
@example(0, "M")
@example(len(TEXT) - 1, "\n")
def test_a_reference_with_one_other_character_is_refused(place: int, character: str) -> None:
    changed = TEXT[:place] + character + TEXT[place + 1 :]
    if changed == TEXT:
        assert references.read(PEPPERS, changed).owner.id == "ann"
    else:
        with refused_with("reference_invalid"):
            references.read(PEPPERS, changed)


def test_a_truncated_reference_is_refused() -> None:
    for length in range(len(TEXT)):
        with case(length), refused_with("reference_invalid"):
            references.read(PEPPERS, TEXT[:length])


@pytest.mark.parametrize("around", ["{} ", " {}", "{}\n", "{}:", "{}0", "{0}{0}", "{0}:{0}"])
def test_a_reference_with_something_around_it_is_refused(around: str) -> None:
    with refused_with("reference_invalid"):
        references.read(PEPPERS, around.format(TEXT))


def forged(payload: dict[str, object], signature: str) -> str:
    encoded = base64.urlsafe_b64encode(json.dumps(payload).encode()).rstrip(b"=").decode()
    return f"mskref1:2026:{encoded}:{signature}"


def test_a_forged_reference_is_refused() -> None:
    """One client can write into the queue, and knows the ids of another owner and the owner's key."""
    for signature in (TEXT.rpartition(":")[2], "0" * 64):
        for payload in ({"owner": "root"}, {"owner": "ann", "key": "AAAAAAAAAAAA"}):
            with refused_with("reference_invalid"):
                references.read(PEPPERS, forged(payload, signature))


def test_a_digest_of_a_key_is_no_signature() -> None:
    """The pepper has two uses. What one of them made is nothing to the other."""
    signed = TEXT.rpartition(":")[0]
    digest = KeyHasher(PEPPERS).digest(signed).rpartition(":")[2]
    with refused_with("reference_invalid"):
        references.read(PEPPERS, f"{signed}:{digest}")


def test_a_reference_works_until_its_pepper_is_retired() -> None:
    assert references.read(ROTATED, TEXT) == references.read(PEPPERS, TEXT)
    assert references.sign(ROTATED, kept_of(BY_LOGIN)).startswith("mskref1:2027:")
    with refused_with("reference_invalid"):
        references.read(PepperRing({"2027": OTHER_SECRET}, current="2027"), TEXT)
    # A pepper that takes the id of another one is another pepper.
    with refused_with("reference_invalid"):
        references.read(OTHER_APPLICATION, TEXT)


# What is kept of a principal.


@pytest.mark.parametrize("max_age", [timedelta(seconds=1), DEFAULT_AGE, MAX_AGE])
def test_the_reference_of_a_login_has_an_end(max_age: timedelta) -> None:
    later = NOW + timedelta(microseconds=999_999)
    assert kept_of(BY_LOGIN, max_age=max_age, now=later) == kept(
        "ann", session_id="s1", made_at=NOW, ends_at=NOW + max_age
    )


@pytest.mark.parametrize(
    "max_age", [timedelta(0), timedelta(microseconds=999_999), MAX_AGE + timedelta(microseconds=1)]
)
def test_an_age_out_of_range_is_refused(max_age: timedelta) -> None:
    for principal in (BY_LOGIN, BY_KEY):
        with pytest.raises(ConfigurationError, match="between 1 second and 30 days"):
            kept_of(principal, max_age=max_age)


def test_what_a_token_of_the_application_is_limited_to_is_kept() -> None:
    # It was exchanged for the token of another issuer, and its owner may get permissions later.
    principal = replace(BY_LOGIN, permissions=frozenset(), scopes=frozenset({"builds:report"}))
    assert kept_of(principal).scopes == {"builds:report"}


def test_a_reference_that_would_be_too_long_is_not_made() -> None:
    longest = kept("x" * 6073)
    text = references.sign(PEPPERS, longest)
    assert len(text) == MAX_LENGTH
    assert references.read(PEPPERS, text) == longest
    with pytest.raises(ConfigurationError, match=f"longer than {MAX_LENGTH} characters"):
        references.sign(PEPPERS, kept("x" * 6074))
