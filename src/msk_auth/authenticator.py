"""The configuration that both authenticators share. Nothing here blocks or awaits.

`Authenticator` blocks (`_sync`) and `AsyncAuthenticator` awaits (`_async`); otherwise they are equal. These functions lead
from the header to the principal:

1. `authenticate` (`authenticator` of either half) looks for the header in the cache of leased verifications.
2. `core.authentication.read_credential` reads the header and refuses a malformed credential.
3. `_verify` looks for a lease, or waits for another request with the same credential (`leases`).
4. `AsyncVerifier.authenticate` (`verification`) finds the record, compares the digest, finds the owner, and returns the
   principal. `AsyncLookUps` checks that each record has the requested id.

An adapter comes first: its guard, `_verify`, and `admit` of `http`, which verifies a request once.
`tests/integrations/test_way.py` lists the functions, and fails if one is added.

A failure of the store or of a look-up becomes :class:`~msk_auth.errors.StoreUnavailable`: fail closed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, NamedTuple

from msk_auth._failures import log_failure
from msk_auth._fork import after_fork_in_child
from msk_auth.clock import Clock
from msk_auth.core import references
from msk_auth.core.authentication import Rules
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.keys import PepperRing
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy
from msk_auth.tokens.issuers import ExternalIssuer
from msk_auth.tokens.profile import TokenProfile
from msk_auth.users import AnyUsers

_ANY_TIME: Final = datetime.min.replace(tzinfo=UTC)
_NO_PATH: Final[Mapping[str, object]] = {}

FLUSH_SECONDS: Final = 60.0
"""How often collected times of last use are written."""


class BaseAuthenticator(Generic[UserT]):
    """The attributes of both authenticators, and the methods that neither block nor await.

    Attributes:
        profiles: The profiles of the JWTs that the application issues.
        issuers: The identity providers whose JWTs are accepted as well.
        logins: The application's functions that find its own logins.
        rules: The configuration on which decisions depend.
        users: The `find_owner`, if it reads users in a session.
        realm: The protected space in challenges.
        clock: The source of time.
    """

    profiles: tuple[TokenProfile, ...]
    issuers: tuple[ExternalIssuer, ...]
    logins: list[Callable[[str], object]]
    rules: Rules
    users: AnyUsers | None
    realm: str
    clock: Clock

    cached_principal: Callable[[Sequence[str | bytes]], Principal[UserT] | None] | None
    """Returns the principal of header values under a current lease; None if `authenticate` must decide.

    The call neither blocks nor awaits. `authenticate` makes the same look-up first. The result is always None for a key with
    networks, since the address of the request is unknown. The attribute itself is None without a lease, with an
    `on_event` hook, which needs every event, and in a subclass that overrides `authenticate`. If you replace `authenticate` on
    an object, set this attribute to None as well.
    """

    def authorize(
        self, principal: Principal[UserT], policy: Policy, path: Mapping[str, object] = _NO_PATH
    ) -> None:
        """Let the principal pass, or raise what :meth:`Policy.check` raises."""
        # Only the age of a login depends on the time, and most policies do not limit this age.
        now = _ANY_TIME if policy.max_age is None else self.clock.now()
        policy.check(principal, now, path)

    def reference(
        self,
        principal: Principal[UserT],
        *,
        max_age: timedelta = references.DEFAULT_AGE,
        outlives_session: bool = False,
    ) -> str:
        """A text that identifies a principal in a queue; `resume` verifies the principal later.

        The text is printable ASCII, mostly of 150 to 300 characters, contains no secret, and no route accepts it. The current
        pepper signs it, so keep a pepper in the ring as long as work waits that was queued with it.

        Args:
            principal: The request's principal.
            max_age: How long a login's reference works, up to 30 days, even if its token expires earlier. A key's reference
                works as long as the key.
            outlives_session: True if a login's reference works after the end of the session, as for an export that
                is sent by mail. By default it ends with the session.

        Raises:
            ConfigurationError: There is no pepper, `max_age` is out of range, or the principal was resumed from a reference:
                pass that reference on.
        """
        peppers = self._peppers_of_references()
        has_session = self.rules.checks_sessions and not outlives_session
        kept = references.kept_of(
            principal, max_age=max_age, has_session=has_session, now=self.clock.now()
        )
        return references.sign(peppers, kept)

    def _peppers_of_references(self) -> PepperRing:
        peppers = self.rules.hasher.peppers
        if peppers is None:
            raise ConfigurationError(
                "References are signed with a pepper. Give the authenticator one, and every worker the same:"
                " hasher=KeyHasher(PepperRing(…))."
            )
        return peppers

    def _open_issuers(self) -> None:
        for issuer in self.issuers:
            issuer.open()

    def _close_issuers(self) -> None:
        for issuer in self.issuers:
            issuer.close()


class Batch(NamedTuple):
    """The contents of one flush.

    Attributes:
        last_used: Maps key ids to the times of last use.
        upgrades: Maps key ids to the stored digest and its replacement.
    """

    last_used: dict[str, datetime]
    upgrades: dict[str, tuple[str, str]]


class UsageBuffer:
    """Collects times of last use and upgraded digests in memory, to be written in batches.

    A write for each request would make requests slow. A crash loses at
    most the last minute, which is harmless. The buffer is thread-safe. A forked child begins with an empty buffer.
    """

    def __init__(self) -> None:
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._batch = Batch({}, {})

    def note(self, principal: Principal[Any], upgrade: tuple[str, str] | None) -> None:
        """Collect the use of a key, if the principal has one, and an upgraded digest if there is one."""
        # For a key the time of this verification.
        key_id, at = principal.key_id, principal.authenticated_at
        if key_id is None or at is None:
            return
        with self._lock:
            self._batch.last_used[key_id] = at
            if upgrade is not None:
                self._batch.upgrades[key_id] = upgrade

    @contextmanager
    def batch(self) -> Generator[Batch]:
        """Everything collected so far, to write in the block.

        If the block fails, all of it is kept for the next call; newer values win. An error
        is logged and not raised, since no request depends on it. A cancellation or an interrupt is raised.
        """
        with self._lock:
            batch, self._batch = self._batch, Batch({}, {})
        try:
            yield batch
        except BaseException as error:
            with self._lock:
                self._batch = Batch(
                    batch.last_used | self._batch.last_used, batch.upgrades | self._batch.upgrades
                )
            if not isinstance(error, Exception):
                raise
            what = "could not write when keys were last used; will retry"
            log_failure(logging.WARNING, what, error)
