"""Ids: their form."""

from __future__ import annotations

import pytest

from task_service.ids import is_id, new_id


def test_a_new_id_has_the_form_of_an_id() -> None:
    made = {new_id("tsk") for _ in range(100)}
    assert len(made) == 100
    assert all(is_id(each, "tsk") and not is_id(each, "run") for each in made)


@pytest.mark.parametrize("tail", ["", "a" * 15, "a" * 17, "a" * 15 + "-", "a" * 15 + "é", "²" * 16])
def test_other_texts_are_no_ids(tail: str) -> None:
    assert not is_id(f"tsk_{tail}", "tsk")
