"""References: texts that identify a principal in a queue, so that later work has the current permissions of its key or its person.

A reference names a key, or the login of an owner. It contains no secret and grants nothing by itself: no route accepts it, since
no bearer credential has a colon, and each use is verified again.

::

    mskref1:<pepper id>:<payload: base64url of JSON>:<signature: 64 hex>

The signature is an HMAC-SHA256 under a pepper of the application, so a client that can write into the queue cannot act as
another owner: ids of owners and keys are public. The payload is read only after the signature was verified.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from .errors import ConfigurationError, CredentialRefused
from .keys import PepperRing
from .model import CredentialKind, Owner, Principal

MAX_LENGTH: Final = 8192
"""The maximum length of a reference; a longer text is refused before any other work."""

DEFAULT_AGE: Final = timedelta(days=1)
"""The default lifetime of a login's reference."""

MAX_AGE: Final = timedelta(days=30)
"""The maximum lifetime of a login's reference."""

_DOMAIN: Final = b"msk_auth/reference/v1\x00"
_FORM: Final = r"(mskref1:([0-9A-Za-z._-]{1,32}):([0-9A-Za-z_-]+)):([0-9a-f]{64})"


def kept_of(
    principal: Principal[Any],
    *,
    max_age: timedelta,
    has_session: bool,
    now: datetime,
) -> Principal[None]:
    """The parts of a principal that a reference keeps.

    Args:
        principal: The authenticated principal.
        max_age: The lifetime of a login's reference.
        has_session: True if the reference ends with the session of the login.
        now: The current time.

    Raises:
        ConfigurationError: `max_age` is out of range, or the principal was resumed from a reference.
    """
    if not timedelta(seconds=1) <= max_age <= MAX_AGE:
        raise ConfigurationError(
            f"max_age of a reference must be between 1 second and {MAX_AGE.days} days, such as timedelta(hours=12)."
        )
    if principal.resumed:
        # A reference that renews itself would have no end.
        raise ConfigurationError(
            "This principal was resumed from a reference. Pass that reference on, instead of making another."
        )
    if principal.key_id is not None:
        return _kept(principal.owner.id, key_id=principal.key_id)
    made_at = now.replace(microsecond=0)
    return _kept(
        principal.owner.id,
        session_id=principal.session_id if has_session else None,
        # The claims of another issuer's token are unknown later, when its owner is found by id.
        scopes=principal.scopes if principal.identity is None else principal.permissions,
        made_at=made_at,
        ends_at=made_at + max_age,
    )


def _kept(
    owner_id: str,
    *,
    key_id: str | None = None,
    session_id: str | None = None,
    scopes: Iterable[str] | None = None,
    made_at: datetime | None = None,
    ends_at: datetime | None = None,
) -> Principal[None]:
    """A principal that has no permission, and no user, until it is verified again. It is never interactive."""
    return Principal(
        Owner(owner_id, (), None),
        CredentialKind.TOKEN if key_id is None else CredentialKind.API_KEY,
        frozenset(),
        made_at,
        key_id=key_id,
        session_id=session_id,
        expires_at=ends_at,
        scopes=None if scopes is None else frozenset(scopes),
        resumed=True,
    )


def sign(peppers: PepperRing, kept: Principal[None]) -> str:
    """The reference for the result of :func:`kept_of`, signed with the current pepper.

    Raises:
        ConfigurationError: The reference would be too long.
    """
    payload = {
        "owner": kept.owner.id,
        "key": kept.key_id,
        "session": kept.session_id,
        "scopes": None if kept.scopes is None else sorted(kept.scopes),
        "made": _seconds(kept.authenticated_at),
        "ends": _seconds(kept.expires_at),
    }
    members = {name: value for name, value in payload.items() if value is not None}
    raw = json.dumps(members, separators=(",", ":")).encode()
    encoded = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    signed = f"mskref1:{peppers.current}:{encoded}"
    text = f"{signed}:{_signature(peppers[peppers.current], signed)}"
    if len(text) > MAX_LENGTH:
        raise ConfigurationError(
            f"The reference would be longer than {MAX_LENGTH} characters: the owner's id or the permissions are too long."
        )
    return text


def read(peppers: PepperRing, text: object) -> Principal[None]:
    """The contents of a reference, which must be verified again before use.

    Raises:
        CredentialRefused: The reference is malformed, was changed, or its pepper is not in the ring.
    """
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        raise CredentialRefused("reference_invalid")
    match = re.fullmatch(_FORM, text)
    pepper = None if match is None else peppers.get(match[2])
    if match is None or pepper is None:
        raise CredentialRefused("reference_invalid")
    if not hmac.compare_digest(_signature(pepper, match[1]), match[4]):
        raise CredentialRefused("reference_invalid")
    # From here on, `sign` wrote the text.
    raw = base64.urlsafe_b64decode(match[3] + "=" * (-len(match[3]) % 4))
    members = cast("dict[str, Any]", json.loads(raw))
    return _kept(
        members["owner"],
        key_id=members.get("key"),
        session_id=members.get("session"),
        scopes=members.get("scopes"),
        made_at=_moment(members.get("made")),
        ends_at=_moment(members.get("ends")),
    )


def _signature(pepper: bytes, signed: str) -> str:
    return hmac.digest(pepper, _DOMAIN + signed.encode(), "sha256").hex()


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())


def _moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
