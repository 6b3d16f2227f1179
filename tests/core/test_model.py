"""The nouns: a record's state at a moment, and that nothing changes under the hands of a request."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

import pytest
from tests.core.support import MICROSECOND, NOW

from msk_auth import ApiKey, KeyStatus, Owner, Principal, Session
from msk_auth.core.model import revoked

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
        (None, NOW, NOW - MICROSECOND, REVOKED),  # a clock that went back revives nothing
        (LATER, NOW, LATER, REVOKED),  # revoked says more than expired
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
def test_nouns_are_frozen_and_take_no_further_attributes(noun: type) -> None:
    assert noun.__dataclass_params__.frozen
    assert "__dict__" not in dir(noun)
