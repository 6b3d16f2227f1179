"""Where a page ended, as text that means nothing to the client (ASVS 5.0, 2.2: bad input is refused)."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.support import NOW, b64

from msk_auth.core.key_management import PageCursor
from msk_auth.errors import InputInvalid

ids = st.from_regex(r"[0-9A-Za-z_-]{1,64}", fullmatch=True)
moments = st.datetimes(timezones=st.just(UTC))


@given(moments, ids)
def test_a_position_comes_back_to_the_microsecond(moment: datetime, item_id: str) -> None:
    cursor = PageCursor.encode(moment, item_id)
    assert PageCursor.decode(cursor) == (moment, item_id)
    assert cursor.isascii()
    assert cursor.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize("item_id", ["W", "aW", "aaW"])
def test_only_padding_is_left_out(item_id: str) -> None:
    # One of them makes a cursor that ends with an X.
    assert PageCursor.decode(PageCursor.encode(NOW, item_id)) == (NOW, item_id)


def test_the_moment_is_the_same_in_every_zone() -> None:
    moment = datetime(2026, 5, 1, 12, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=-9, minutes=-30)))
    assert PageCursor.encode(elsewhere, "k") == PageCursor.encode(moment, "k")
    assert PageCursor.decode(PageCursor.encode(elsewhere, "k"))[0].tzinfo is UTC


def refused(cursor: str) -> bool:
    try:
        PageCursor.decode(cursor)
    except InputInvalid as problem:
        (error,) = problem.errors
        return problem.code == "input_invalid" and error.field == "cursor"
    return False


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b".",
        b"1",
        b"1.",
        b".a",
        b"1.a.b",
        b"01.a",
        b"-0.a",
        b"+1.a",
        b"1e3.a",
        b"1.5.a",
        b" 1.a",
        b"1 .a",
        b"1.a ",
        b"1.a\n",
        b"1.a\x00",
        b"1.%",
        b"1.a'; DROP TABLE keys; --",
        b"1." + b"a" * 65,
        b"9" * 18 + b".a",  # beyond the year 9999
        b"-" + b"9" * 18 + b".a",
        b"9" * 19 + b".a",
        b"9" * 5000 + b".a",
        "١.a".encode(),
        b"\xff.a",
        "1.é".encode(),
    ],
    ids=range(26),
)
def test_a_position_that_cannot_be_is_refused(raw: bytes) -> None:
    assert refused(b64(raw))


@pytest.mark.parametrize(
    "cursor",
    ["", "=", "====", "A", "null", "0", "é", "\ud800", "a b", "MS5h\n", "MS5h\x00", "../etc", "%"],
)
def test_text_that_is_no_base64_is_refused(cursor: str) -> None:
    assert refused(cursor)


@given(st.text() | st.binary().map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_anything_else_is_refused_or_a_position(cursor: str) -> None:
    if not refused(cursor):
        moment, item_id = PageCursor.decode(cursor)
        assert PageCursor.decode(PageCursor.encode(moment, item_id)) == (moment, item_id)


def test_a_huge_cursor_is_refused() -> None:
    assert refused("A" * 1_000_000)
