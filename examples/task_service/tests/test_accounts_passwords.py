"""Passwords: what is accepted (NIST SP 800-63B-4, section 3.1.1; ASVS 5.0, section 6.2), and how they are hashed."""

from __future__ import annotations

import asyncio
import threading
import unicodedata
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from argon2.profiles import CHEAPEST
from hypothesis import given
from hypothesis import strategies as st

from msk_auth.errors import InputInvalid, TooManyAttempts
from task_service.accounts.passwords import (
    MAX_LENGTH,
    MIN_LENGTH,
    OWASP,
    Passwords,
    check_password,
    normalised,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
async def passwords() -> AsyncIterator[Passwords]:
    passwords = Passwords(CHEAPEST)
    yield passwords
    passwords.close()


# What is accepted


@pytest.mark.parametrize(
    "password",
    [
        "nine violet submarines",
        "correct horse battery staple",
        "x7#Lq!09vRt2",
        "839201748392",
        "пароль для проверки",
        "我的密码是一个很长的句子吗",
        "🦉🐢🦊🐙🦀🐝🦔🐺🦁🐸🐧🐬",
        "q" * 4 + "violet" * 20 + "wzyx",
        "  spaces around count ",
    ],
)
def test_a_long_unusual_password_is_accepted_whatever_it_is_made_of(password: str) -> None:
    assert check_password(password, "ann") == normalised(password)


@pytest.mark.parametrize(
    "password",
    [
        "password1234",
        "PASSWORD!!1234",
        "P@ssw0rd!2024",
        "passwordpassword",
        "123456789012",
        "qwertyuiop12",
        "asdfghjkl;'#",
        "poiuytrewq21",
        "aaaaaaaaaaaa",
        "abcabcabcabc",
        "iloveyouforever",
        "administrator",
        "welcome1welcome1",
        "changeme-changeme",
        "............",
        "1111 2222 3333",
    ],
)
def test_what_is_tried_first_is_refused(password: str) -> None:
    with pytest.raises(InputInvalid, match="easy to guess"):
        check_password(password, "ann")


@pytest.mark.parametrize("password", ["", "x7#Lq!09vRt", "é" * 11, "e\u0301" * 11])
def test_less_than_twelve_characters_are_refused(password: str) -> None:
    with pytest.raises(InputInvalid, match=f"{MIN_LENGTH} characters or more"):
        check_password(password, "ann")


@pytest.mark.parametrize("length", [MAX_LENGTH + 1, 100_000])
def test_more_than_128_characters_are_refused_and_never_cut_off(length: int) -> None:
    with pytest.raises(InputInvalid, match=f"{MAX_LENGTH} characters at most"):
        check_password("nine violet submarines".ljust(length, "x"), "ann")


@pytest.mark.parametrize("password", ["marianne violet", "VIOLET MARIANNE 9"])
def test_the_user_name_is_not_part_of_the_password(password: str) -> None:
    with pytest.raises(InputInvalid, match="user name"):
        check_password(password, "marianne")


def test_a_short_user_name_does_not_forbid_its_letters() -> None:
    assert check_password("nine violet submarines", "s")


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InputInvalid, match="lone surrogate"):
        check_password("nine violet \ud800 submarines", "ann")


def test_the_error_names_the_field() -> None:
    with pytest.raises(InputInvalid) as caught:
        check_password("short", "ann", field="new_password")

    assert [error.field for error in caught.value.errors] == ["new_password"]


@given(st.text(st.characters(), max_size=200), st.text(max_size=64))
def test_every_text_is_accepted_or_refused_and_what_is_accepted_can_be_hashed(
    password: str, username: str
) -> None:
    try:
        accepted = check_password(password, username)
    except InputInvalid:
        return

    assert MIN_LENGTH <= len(accepted) <= MAX_LENGTH
    assert unicodedata.is_normalized("NFC", accepted)
    assert accepted.encode()


# How it is hashed


def test_the_parameters_are_owasp_s() -> None:
    assert (OWASP.memory_cost, OWASP.time_cost, OWASP.parallelism) == (19_456, 2, 1)
    assert OWASP.type.name == "ID"


async def test_the_right_password_matches_and_no_other(passwords: Passwords) -> None:
    encoded = await passwords.hash("nine violet submarines")

    assert encoded.startswith("$argon2id$")
    assert await passwords.verify("nine violet submarines", encoded)
    assert not await passwords.verify("nine violet submarine", encoded)
    assert not await passwords.verify("NINE violet submarines", encoded)
    assert not await passwords.verify("nine violet submarines ", encoded)


async def test_the_same_password_hashes_differently_each_time(passwords: Passwords) -> None:
    assert await passwords.hash("x" * 12) != await passwords.hash("x" * 12)


async def test_a_password_may_be_typed_in_any_normalisation(passwords: Passwords) -> None:
    encoded = await passwords.hash(check_password("caf\u00e9 violet 99", "ann"))

    assert await passwords.verify("cafe\u0301 violet 99", encoded)


async def test_no_hash_is_matched_by_nothing_not_even_the_stand_in_s_password(
    passwords: Passwords,
) -> None:
    assert not await passwords.verify("no user's password", None)
    assert not await passwords.verify("", None)


@pytest.mark.parametrize("password", ["\ud800", "x" * 1_000_000, "\x00"])
async def test_what_can_be_no_password_is_wrong_and_not_an_error(
    passwords: Passwords, password: str
) -> None:
    encoded = await passwords.hash("nine violet submarines")

    assert not await passwords.verify(password, encoded)
    assert not await passwords.verify(password, None)


@pytest.mark.parametrize("encoded", ["", "plain", "$argon2id$v=19$m=1$x", "$2b$12$abc"])
async def test_a_stored_hash_that_is_damaged_matches_nothing_and_is_logged(
    passwords: Passwords, encoded: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not await passwords.verify("nine violet submarines", encoded)
    assert "hash is invalid" in caplog.text
    assert "submarines" not in caplog.text


async def test_hashes_of_other_parameters_are_still_good_and_are_to_be_replaced(
    passwords: Passwords,
) -> None:
    stronger = Passwords(replace(CHEAPEST, time_cost=CHEAPEST.time_cost + 1))
    encoded = await passwords.hash("nine violet submarines")

    assert await stronger.verify("nine violet submarines", encoded)
    assert stronger.needs_rehash(encoded)
    assert not passwords.needs_rehash(encoded)
    stronger.close()


async def test_many_requests_get_retry_after_and_do_not_block_the_event_loop(
    passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    running: set[int] = set()

    def slow(password: str) -> str:
        running.add(threading.get_ident())
        gate.wait(30)
        return password

    monkeypatch.setattr(passwords, "_hasher", type("Slow", (), {"hash": staticmethod(slow)})())
    storm = [asyncio.create_task(passwords.hash("x")) for _ in range(200)]
    await asyncio.sleep(0.05)
    refused = [task for task in storm if task.done()]
    gate.set()
    results = await asyncio.gather(*storm, return_exceptions=True)

    assert len(running) <= 2
    assert threading.get_ident() not in running
    assert len(refused) == 200 - 66
    assert all(isinstance(task.exception(), TooManyAttempts) for task in refused)
    assert results.count("x") == 66
    assert await passwords.hash("y") == "y"


async def test_cancelled_callers_release_their_slot_once_the_hash_is_done(
    passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(
        passwords,
        "_hasher",
        type("Slow", (), {"hash": staticmethod(lambda password: gate.wait(30) and password)})(),
    )
    storm = [asyncio.create_task(passwords.hash("x")) for _ in range(66)]
    await asyncio.sleep(0.05)
    for task in storm:
        task.cancel()
    await asyncio.gather(*storm, return_exceptions=True)
    gate.set()
    results = await asyncio.gather(*(passwords.hash("y") for _ in range(60)))

    assert results == ["y"] * 60
