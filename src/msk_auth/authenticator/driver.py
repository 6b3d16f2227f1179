"""What both authenticators know, and how they speak of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Generic

from msk_auth.clock import Clock, SystemClock
from msk_auth.core import flows
from msk_auth.core.digest import KeyHasher
from msk_auth.core.errors import ConfigurationError, CredentialRefused, Problem
from msk_auth.core.events import Refusal
from msk_auth.core.flows import Rules
from msk_auth.core.keys import KeyFormat, KeyValue
from msk_auth.core.model import KeyLimits, Principal, UserT
from msk_auth.core.policy import Policy
from msk_auth.core.steps import Flow
from msk_auth.core.tokens import ParsedToken, TokenProfile
from msk_auth.leases.cache import Keep, LeaseCache, Leases

from .usage import UsageBuffer
from .validation import check_users_shareable

PROBLEM_BASE: Final = "https://msk-auth.readthedocs.io/en/stable/reference/errors/"
"""What the `type` of problem documents begins with by default; `#` and the code are added."""

NO_LIMITS: Final = KeyLimits()
NO_REGISTER: Final = (
    "This store cannot record leases: give it recorded_leases(), record_lease() and forget_lease(),"
    " or leave the lease out."
)
FLUSH_SECONDS: Final = 60.0
"""How long collected times of last use may wait to be written."""


class Driver(Generic[UserT]):
    """The part of an authenticator that neither blocks nor awaits."""

    _leases: Leases[UserT]

    recall: Callable[[Sequence[str | bytes]], Principal[UserT] | None]
    """What was verified for these header values, under a lease that has not ended; None if only `authenticate` can tell.

    It neither blocks nor awaits, and `authenticate` begins with the same look. It is always None without a lease, with
    an `on_event` hook, which has to be told, and in a subclass with an `authenticate` of its own; whoever replaces that
    method on an object replaces this as well.
    """

    def __init__(
        self,
        *,
        find_owner: Callable[[str], object],
        tokens: TokenProfile | Sequence[TokenProfile],
        checks_sessions: bool,
        key_format: KeyFormat | None,
        hasher: KeyHasher | None,
        realm: str,
        problem_base: str,
        clock: Clock | None,
        lease: timedelta | None,
        lease_entries: int,
        may_recall: bool,
    ) -> None:
        if not realm.isascii() or not realm.isprintable() or '"' in realm or "\\" in realm:
            raise ConfigurationError("realm must be printable ASCII without quotes, such as 'api'.")
        self.rules: Rules = Rules(
            key_format=KeyFormat() if key_format is None else key_format,
            hasher=KeyHasher() if hasher is None else hasher,
            tokens=(tokens,) if isinstance(tokens, TokenProfile) else tuple(tokens),
            checks_sessions=checks_sessions,
            shares_principals=lease is not None,
        ).check()
        self.realm = realm
        self.problem_base = problem_base
        self.clock: Clock = SystemClock() if clock is None else clock
        self._usage = UsageBuffer()
        self._cache: LeaseCache[UserT] | None = None
        if lease is not None:
            check_users_shareable(find_owner)
            self._cache = LeaseCache(lease, clock=self.clock, max_entries=lease_entries)
        self.recall = _nothing if self._cache is None or not may_recall else self._cache.find

    def authorize(self, principal: Principal[UserT], policy: Policy) -> None:
        """Let the principal pass, or raise what :meth:`Policy.check` raises."""
        # Only the age of a login is a question of time, and most requests are not asked it.
        now = principal.authenticated_at if policy.max_age is None else self.clock.now()
        policy.check(principal, now)

    def _verify(self, presented: KeyValue | ParsedToken) -> Flow[Principal[UserT]]:
        """The principal of a credential: by the store, or by what a lease allows to use again."""
        if self._cache is None:
            return self._read(presented)
        return self._leases.verify(self._cache, presented, partial(self._read, presented))

    def _read(
        self, presented: KeyValue | ParsedToken, keep: Keep[UserT] | None = None
    ) -> Flow[Principal[UserT]]:
        """Verify by the store, and hand on what a success leaves behind."""
        now = self.clock.now()
        outcome = yield from flows.authenticate(self.rules, presented, now)
        principal: Principal[UserT] = outcome.principal
        if principal.key_id is not None:
            self._usage.note(principal.key_id, now, outcome.upgrade)
        if keep is not None:
            keep(principal, outcome.valid_until)
        return principal


def _nothing(_authorization: Sequence[str | bytes]) -> None:
    """Recall nothing."""


def refusal(problem: Problem, now: datetime) -> Refusal:
    """The event that tells of a problem."""
    key_id = problem.key_id if isinstance(problem, CredentialRefused) else None
    return Refusal(now, problem.code, key_id)
