"""What an administrator does with the keys of all owners: list them, and revoke them. Written once for both authenticators.

There is no flow here that makes a key, extends one or shows its value: an administrator ends access and gives none (G3, G4).
Each begins with the application's policy, an interactive login with a permission.

A page reads a bounded number of records, also where few of ten million match: it may then hold fewer keys than asked for,
or none, and has a cursor as long as there are more records.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime
from typing import Any, Final, TypeAlias

from . import steps
from .activity import KeyActivity
from .cursor import PageCursor
from .errors import FieldError, InputInvalid, KeyNotFound
from .events import KeyRevocation, RevocationCause
from .fields import MAX_OWNER_ID_LENGTH, is_label
from .key_management import MAX_PAGE, is_key_id
from .model import ApiKey, KeyFilter, KeyPage, KeyQuery, Principal
from .policy import Policy
from .revocation import Ended
from .steps import Flow

MAX_REVOKED: Final = 200
"""How many keys one call revokes."""

BATCH: Final = 500
"""How many records are read at once. More than :data:`MAX_PAGE`, so that most pages take one read."""

MAX_READS: Final = 20
"""How many batches one page reads at most."""

Position: TypeAlias = tuple[str, datetime, str]
"""Where a page ended: owner, time of creation and id of its last record."""


def list_keys(
    policy: Policy,
    principal: Principal[Any],
    wanted: KeyFilter,
    *,
    cursor: str | None,
    limit: int,
    now: datetime,
) -> Flow[KeyPage]:
    """A page of the keys of all owners that match, by owner, each owner's newest first. Deleted keys are not listed."""
    policy.check(principal, now)
    _check(wanted, limit)
    position = None if cursor is None else _decode(cursor)
    found: list[ApiKey] = []
    for _ in range(MAX_READS):
        batch = yield from _read(wanted, position, now)
        for record in batch:
            position = (record.owner_id, record.created_at, record.id)
            if wanted.matches(record, now):
                found.append(record)
                if len(found) == limit:
                    return KeyPage(tuple(found), _encode(position))
        if len(batch) < BATCH:
            return KeyPage(tuple(found), None)
    return KeyPage(tuple(found), None if position is None else _encode(position))


def key_activity(
    policy: Policy, principal: Principal[Any], key_id: str, since: date | None, now: datetime
) -> Flow[KeyActivity]:
    """What a key of any owner did, deleted ones included: its activity is kept as long as that of others."""
    policy.check(principal, now)
    record = (yield from steps.find_key(key_id)) if is_key_id(key_id) else None
    if record is None:
        raise KeyNotFound
    return (yield from steps.find_activity(record.id, since))


def revoke_keys(
    policy: Policy, principal: Principal[Any], key_ids: Sequence[str], now: datetime
) -> Flow[Ended]:
    """Revoke keys of any owners, for good, at the price of one wait. What is no key is None in the result."""
    policy.check(principal, now)
    if isinstance(key_ids, str) or not 1 <= len(key_ids) <= MAX_REVOKED:
        raise InputInvalid.of("ids", f"Give a list of 1 to {MAX_REVOKED} ids.")
    held: dict[str, ApiKey] = {}
    for key_id in dict.fromkeys(key_ids):
        record = (yield from steps.find_key(key_id)) if is_key_id(key_id) else None
        if record is not None:
            held[key_id] = record

    def event(record: ApiKey) -> KeyRevocation:
        return KeyRevocation(now, principal, record, RevocationCause.ADMINISTRATOR)

    # Also those that are revoked already: the call that revoked them may still wait for leases to end.
    changed = yield from steps.revoke_keys(
        tuple(held.values()), now, lambda record: (event(record),)
    )
    # A deleted one counts as none, as for its owner. It is revoked.
    revoked = dict(zip(held, changed, strict=True))
    events = tuple(event(record) for record in changed if record is not None)
    return Ended(tuple(revoked.get(key_id) for key_id in key_ids), events)


def _read(wanted: KeyFilter, after: Position | None, now: datetime) -> Flow[Sequence[ApiKey]]:
    if wanted.owner_id is None:
        return (yield from steps.list_all_keys(after, BATCH))
    since = None if after is None else after[1:]
    query = KeyQuery(wanted.owner_id, now, wanted.status, since, BATCH, wanted.label)
    return (yield from steps.list_keys(query))


def _check(wanted: KeyFilter, limit: int) -> None:
    wrong = [
        FieldError(name, "Give the time with its offset from UTC.")
        for name in ("created_before", "unused_since", "expires_before")
        if (moment := getattr(wanted, name)) is not None and moment.utcoffset() is None
    ]
    if wanted.owner_id is not None and not _is_owner_id(wanted.owner_id):
        wrong.append(FieldError("owner_id", "This is not the id of an owner."))
    if wanted.label is not None and not is_label(wanted.label):
        wrong.append(FieldError("label", "This is not a label."))
    if not 1 <= limit <= MAX_PAGE:
        wrong.append(FieldError("limit", f"Choose between 1 and {MAX_PAGE}."))
    if wrong:
        raise InputInvalid(wrong)


def _is_owner_id(text: str) -> bool:
    return 0 < len(text) <= MAX_OWNER_ID_LENGTH and "\x00" not in text


def _encode(position: Position) -> str:
    owner_id, created_at, key_id = position
    owner = base64.urlsafe_b64encode(owner_id.encode()).rstrip(b"=").decode()
    return f"{PageCursor.encode(created_at, key_id)}.{owner}"


def _decode(cursor: str) -> Position:
    where, _, owner = cursor.partition(".")
    created_at, key_id = PageCursor.decode(where)
    owner_id = ""
    # The decoder alone would skip every other character.
    if re.fullmatch("[0-9A-Za-z_-]+", owner) is not None:
        with suppress(ValueError):
            # The decoder takes padding that is too long.
            owner_id = base64.urlsafe_b64decode(owner + "==").decode()
    if not _is_owner_id(owner_id):
        raise InputInvalid.of(
            "cursor", "This is not a cursor of this listing. Begin again without one."
        )
    return owner_id, created_at, key_id
