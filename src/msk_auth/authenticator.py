"""What the two authenticators have in common: their configuration. Nothing here blocks or awaits.

`Authenticator` blocks (`_sync`) and `AsyncAuthenticator` awaits (`_async`); apart from that they are the same. This is the way
from the header to the principal, in one direction:

1. `authenticate` (`authenticator` of either half) looks for the header in the cache of leased verifications.
2. `core.authentication.read_credential` reads the header and checks the form of the credential. Garbage ends here.
3. `_verify` looks for a lease, or waits for another request with the same credential (`leases`).
4. `AsyncVerifier.authenticate` (`verification`) finds the record, compares the digest, finds the owner, and returns the
   principal. `AsyncLookUps` checks that each record has the id that was asked for.

Before it comes an adapter: its guard, `_verify`, and `admit` of `http`, which verifies a request once.
`tests/integrations/test_way.py` lists the functions, and fails where one is added.

A failure of the store or of a look-up becomes :class:`~msk_auth.errors.StoreUnavailable`: fail closed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, NamedTuple

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
    """What both authenticators have: what they were made with, and what neither blocks nor awaits.

    Attributes:
        profiles: Those of the JWTs that the application issues.
        issuers: The identity providers whose JWTs are accepted as well.
        logins: The application's functions that find its own logins.
        rules: What was configured, as far as decisions depend on it.
        users: The `find_owner`, if it reads users in a session.
        realm: The protected space in challenges.
        clock: Where the time comes from.
    """

    profiles: tuple[TokenProfile, ...]
    issuers: tuple[ExternalIssuer, ...]
    logins: list[Callable[[str], object]]
    rules: Rules
    users: AnyUsers | None
    realm: str
    clock: Clock

    cached_principal: Callable[[Sequence[str | bytes]], Principal[UserT] | None] | None
    """Returns the principal of header values, if a lease on it has not ended; None if `authenticate` has to decide.

    It neither blocks nor awaits. `authenticate` makes the same look-up first. The result is always None for a key that has
    networks, since this does not know the address of the request. The attribute itself is None without a lease, with an
    `on_event` hook, which has to be notified, and in a subclass that overrides `authenticate`. If you replace `authenticate` on
    an object, set this to None as well.
    """

    def authorize(
        self, principal: Principal[UserT], policy: Policy, path: Mapping[str, object] = _NO_PATH
    ) -> None:
        """Let the principal pass, or raise what :meth:`Policy.check` raises."""
        # Only the age of a login depends on the time, and most policies do not limit it.
        now = _ANY_TIME if policy.max_age is None else self.clock.now()
        policy.check(principal, now, path)

    def reference(
        self,
        principal: Principal[UserT],
        *,
        max_age: timedelta = references.DEFAULT_AGE,
        outlives_session: bool = False,
    ) -> str:
        """A text that stands for a principal in a queue: what is done with it later is verified then, by `resume`.

        It is printable ASCII, mostly of 150 to 300 characters, holds no secret and is accepted by no route. It is signed with
        the current pepper, so keep a pepper in the ring for as long as work waits that was queued under it.

        Args:
            principal: As the request was authenticated.
            max_age: How long the reference of a login works, up to 30 days, whenever its token expires. The reference of a
                key works as long as the key.
            outlives_session: Whether the reference of a login works on when its session has ended, as for an export whose
                result is sent by mail. By default it ends with the session.

        Raises:
            ConfigurationError: There is no pepper, `max_age` is out of range, or the principal acts by a reference itself:
                hand that one on.
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
    """What one flush writes.

    Attributes:
        last_used: From key id to the moment of its last use.
        upgrades: From key id to the stored digest and the one to replace it with.
    """

    last_used: dict[str, datetime]
    upgrades: dict[str, tuple[str, str]]


class UsageBuffer:
    """Collects times of last use and upgraded digests in memory, to be written in batches.

    Neither belongs into the path of a request: a write for each request is what makes other libraries slow. A crash loses at
    most the last minute of them, which does no harm. It is safe to use from several threads. A forked child begins with an empty buffer.
    """

    def __init__(self) -> None:
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._batch = Batch({}, {})

    def note(self, key_id: str, at: datetime, upgrade: tuple[str, str] | None) -> None:
        """Collect a time of last use, and an upgraded digest if there is one."""
        with self._lock:
            self._batch.last_used[key_id] = at
            if upgrade is not None:
                self._batch.upgrades[key_id] = upgrade

    @contextmanager
    def batch(self) -> Generator[Batch]:
        """Everything collected so far, to be written in the block.

        If the block fails, all of it is kept for the next call; what was collected meanwhile is newer and wins. An error
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
