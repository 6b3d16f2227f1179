"""Ids: their form, and that no letter is more likely than another."""

from __future__ import annotations

from collections import Counter

import pytest

from task_service import ids
from task_service.ids import is_id, new_id


def test_a_new_id_has_the_form_of_an_id() -> None:
    made = {new_id("tsk") for _ in range(100)}
    assert len(made) == 100
    assert all(is_id(each, "tsk") and not is_id(each, "run") for each in made)


@pytest.mark.parametrize("tail", ["", "a" * 15, "a" * 17, "a" * 15 + "-", "a" * 15 + "é", "²" * 16])
def test_other_texts_are_no_ids(tail: str) -> None:
    assert not is_id(f"tsk_{tail}", "tsk")


def test_each_letter_stands_for_equally_many_bytes() -> None:
    letters = Counter(bytes(range(256)).translate(ids._LETTERS, ids._BIASED).decode())
    assert set(letters.values()) == {4}
    assert len(letters) == 62


def test_an_id_is_whole_if_most_random_bytes_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids.secrets, "token_bytes", lambda n: b"\xff" * (n - 1) + b"\x00")
    assert new_id("tsk") == f"tsk_{'0' * 16}"
