"""References: what a queue keeps of a principal, so that work can act later with what its key or its person may do then.

A reference names a key, or the login of an owner. It holds no secret and opens nothing by itself: no route accepts it, since
no bearer credential has a colon, and each use of it is verified afresh.

::

    mskref1:<pepper id>:<payload: base64url of JSON>:<signature: 64 hex>

The signature is an HMAC-SHA256 under a pepper of the application, so a client that can write into the queue cannot act as
another owner: ids of owners and keys are public. Nothing of the payload is read before the signature was verified.
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
"""The longest reference; a longer one is refused before any other work."""

DEFAULT_AGE: Final = timedelta(days=1)
"""How long the reference of a login works by default."""

MAX_AGE: Final = timedelta(days=30)
"""The longest time for which the reference of a login can work."""

_DOMAIN: Final = b"msk_auth/reference/v1\x00"
_FORM: Final = r"(mskref1:([0-9A-Za-z._-]{1,32}):([0-9A-Za-z_-]+)):([0-9a-f]{64})"


def kept_of(
    principal: Principal[Any],
    *,
    max_age: timedelta,
    has_session: bool,
    now: datetime,
) -> Principal[None]:
    """What a reference keeps of a principal.

    Args:
        principal: As it was authenticated.
        max_age: How long the reference of a login works.
        has_session: Whether it ends with the session of the login.
        now: The moment.

    Raises:
        ConfigurationError: `max_age` is out of range, or the principal acts by a reference itself.
    """
    if not timedelta(seconds=1) <= max_age <= MAX_AGE:
        raise ConfigurationError(
            f"max_age of a reference must be between 1 second and {MAX_AGE.days} days, such as timedelta(hours=12)."
        )
    if principal.resumed:
        # A reference that renews itself would have no end.
        raise ConfigurationError(
            "This principal acts by a reference. Hand that reference on, instead of making another one of it."
        )
    if principal.key_id is not None:
        return _kept(principal.owner.id, key_id=principal.key_id)
    made_at = now.replace(microsecond=0)
    return _kept(
        principal.owner.id,
        session_id=principal.session_id if has_session else None,
        # What the claims of another issuer's token grant is not known later, when its owner is found by id.
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
    """The reference of what :func:`kept_of` returned, signed with the current pepper.

    Raises:
        ConfigurationError: It is too long for a reference.
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
    """What a reference keeps, to be verified again before it is acted for.

    Raises:
        CredentialRefused: It has another form, it was changed, or its pepper is not in the ring.
    """
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        raise CredentialRefused("reference_invalid")
    match = re.fullmatch(_FORM, text)
    pepper = None if match is None else peppers.get(match[2])
    if match is None or pepper is None:
        raise CredentialRefused("reference_invalid")
    if not hmac.compare_digest(_signature(pepper, match[1]), match[4]):
        raise CredentialRefused("reference_invalid")
    # From here on it is what `sign` wrote.
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
