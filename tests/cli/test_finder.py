"""Keys in bytes: found wherever they stand, and nothing else is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msk_auth import KeyFormat
from msk_auth.cli._finder import CHUNK, Finder, Found
from msk_auth.core.keys import ALPHABET, checksum

VECTORS = [
    "msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O",
    "msk_AAAAAAAAAAAA_0000000000000000000000000000000700iItp",
    "msk_000000000000_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz3ZQm9b",
]
KEY = VECTORS[0]


def find(*chunks: bytes, prefixes: tuple[str, ...] = ("msk",)) -> list[Found]:
    return list(Finder(prefixes).find(chunks))


def places(*chunks: bytes) -> list[tuple[int, int]]:
    return [(found.line, found.column) for found in find(*chunks)]


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


base62 = st.text(ALPHABET, min_size=1)
prefixes = st.from_regex(r"\A[a-z][a-z0-9]{1,15}\Z")


@st.composite
def keys(draw: st.DrawFn, prefix: str = "msk") -> str:
    key_id = draw(st.text(ALPHABET, min_size=12, max_size=12))
    body = f"{prefix}_{key_id}_{draw(st.text(ALPHABET, min_size=32, max_size=32))}"
    return body + checksum(body)


@given(before=st.binary(max_size=200), key=keys(), after=st.binary(max_size=200))
def test_a_key_in_any_bytes_is_found_at_its_place(before: bytes, key: str, after: bytes) -> None:
    found = [each for each in find(before + key.encode() + after) if each.key_id == key[4:16]]
    assert [(each.line, each.mask) for each in found] == [
        (before.count(b"\n") + 1, f"{key[:17]}…"),
    ]


@given(before=st.text(max_size=100), key=keys(), after=st.text(max_size=100))
def test_the_column_counts_code_points(before: str, key: str, after: str) -> None:
    before = before.replace("\0", "")
    (found,) = find((before + key + after).encode("utf-8", "ignore"))
    line = before.encode("utf-8", "ignore").decode().rpartition("\n")[2]
    assert found.column == len(line) + 1


@given(data=st.binary(max_size=300), key=keys(), at=st.integers(0, 300), size=st.integers(1, 120))
def test_chunks_make_no_difference(data: bytes, key: str, at: int, size: int) -> None:
    data = data[:at] + key.encode() + b"\n\xc3\xa4 " + key.encode() + data[at:]
    assert find(*pieces(data, size)) == find(data)


@given(prefix=prefixes, data=st.data())
def test_any_prefix_can_be_looked_for(prefix: str, data: st.DataObject) -> None:
    key = data.draw(keys(prefix))
    (found,) = find(b"x" + key.encode() + b"x", prefixes=("msk", prefix))
    assert found.mask == f"{key[: len(prefix) + 14]}…"
    assert find(b"x" + key.encode(), prefixes=("zz" if prefix != "zz" else "yy",)) == []


@given(key=keys(), at=st.integers(0, 54), character=st.characters(codec="ascii"))
def test_a_key_with_another_character_is_none(key: str, at: int, character: str) -> None:
    changed = key[:at] + character + key[at + 1 :]
    assert bool(find(changed.encode())) is (changed == key)


@given(key=keys(), at=st.integers(0, 54))
def test_a_key_that_lacks_a_character_is_none(key: str, at: int) -> None:
    assert find((key[:at] + key[at + 1 :]).encode() + b"\n") == []


@pytest.mark.parametrize("key", VECTORS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be", "utf-16"])
def test_the_vectors_are_found_in_every_encoding(key: str, encoding: str) -> None:
    text = f"first\n    key = {key}\n".encode(encoding)
    assert [(found.line, found.column, found.mask) for found in find(text)] == [
        (2, 11, f"{key[:17]}…")
    ]


@pytest.mark.parametrize("between", ["", "\n", "_", "msk_", "x"])
def test_keys_side_by_side_are_all_found(between: str) -> None:
    assert len(find(between.join(VECTORS).encode())) == 3


def test_a_key_right_behind_a_look_alike_is_found() -> None:
    look_alike = KEY[:-6] + "000000"
    assert places((look_alike + KEY).encode()) == [(1, 56)]
    assert places((KEY[:20] + KEY).encode()) == [(1, 21)]


def test_a_key_across_chunks_of_the_usual_size() -> None:
    for shift in (1, 27, 54, 55):
        before = b"a\n" * (CHUNK // 2) + b"b" * 100
        data = before[: CHUNK - shift] + KEY.encode()
        (found,) = find(*pieces(data, CHUNK))
        assert found.line == data[: CHUNK - shift].count(b"\n") + 1


def test_many_keys_take_no_more_than_their_share() -> None:
    # Each key's place is counted from the one before; from the beginning it would be 20 GB here.
    data = (KEY + "\n").encode() * 40_000
    assert places(data)[-1] == (40_000, 1)


def test_a_fresh_key_is_found() -> None:
    key = KeyFormat("acme1").generate()
    (found,) = find(key.reveal().encode(), prefixes=("acme1",))
    assert (found.key_id, found.mask) == (key.id, key.mask)
