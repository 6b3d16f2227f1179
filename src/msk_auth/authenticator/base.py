"""What the two authenticators have in common: their configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, cast

from msk_auth.clock import Clock, SystemClock
from msk_auth.core import references
from msk_auth.core.activity import ActivitySettings
from msk_auth.core.authentication import Rules
from msk_auth.core.digest import KeyHasher, PepperRing
from msk_auth.core.errors import (
    AddressNotAllowed,
    ConfigurationError,
    CredentialRefused,
    Problem,
)
from msk_auth.core.events import Refusal
from msk_auth.core.keys import KeyFormat
from msk_auth.core.model import ExternalIdentity, KeyLimits, Principal, UserT
from msk_auth.core.policy import Policy
from msk_auth.leases.cache import LeaseCache
from msk_auth.tokens.external import ExternalIssuer, share_keys
from msk_auth.tokens.profile import TokenProfile
from msk_auth.users import AnyUsers, users_in

from .activity import ActivityLog
from .usage import UsageBuffer
from .validation import check_users_shareable, validate_components

PROBLEM_BASE: Final = "https://msk-auth.readthedocs.io/en/stable/reference/errors/"
"""What the `type` of problem documents begins with by default; `#` and the code are added."""

NO_LIMITS: Final = KeyLimits()
_ANY_TIME: Final = datetime.min.replace(tzinfo=UTC)

FLUSH_SECONDS: Final = 60.0
"""How often collected times of last use are written."""


class BaseAuthenticator(Generic[UserT]):
    """Holds the configuration of an authenticator. It neither blocks nor awaits.

    Args:
        awaits: Whether the subclass awaits the store and the look-ups.
        overrides_authenticate: Whether a subclass of the application authenticates in its own way.
        takes_address: Whether `authenticate` takes the address of the client. One of a subclass may not: then keys that have
            networks are refused.

    The other arguments are those of :class:`Authenticator`.
    """

    cached_principal: Callable[[Sequence[str | bytes]], Principal[UserT] | None]
    """The principal of these header values, if a lease on it has not ended; None if `authenticate` has to decide.

    It neither blocks nor awaits. `authenticate` makes the same look-up first. The result is always None for a key that has
    networks, since this does not know the address of the request, without a lease,
    with an `on_event` hook, which has to be notified, and in a subclass that overrides `authenticate`. If you replace
    `authenticate` on an object, replace this method as well.
    """

    def __init__(
        self,
        *,
        store: object,
        find_owner: Callable[[str], object],
        find_external_owner: Callable[[ExternalIdentity], object] | None,
        find_session: Callable[[str], object] | None,
        key_limits: object,
        may_act_for: object,
        on_event: object,
        tokens: TokenProfile | Sequence[TokenProfile],
        issuers: Sequence[ExternalIssuer],
        logins: Sequence[Callable[[str], object]],
        key_format: KeyFormat | None,
        hasher: KeyHasher | None,
        realm: str,
        problem_base: str,
        clock: Clock | None,
        lease: timedelta | None,
        lease_entries: int,
        activity: object,
        awaits: bool,
        overrides_authenticate: bool,
        takes_address: bool,
    ) -> None:
        validate_components(
            store=store,
            find_owner=find_owner,
            find_external_owner=find_external_owner,
            find_session=find_session,
            key_limits=key_limits,
            may_act_for=may_act_for,
            on_event=on_event,
            issuers=issuers,
            logins=logins,
            activity=activity,
            awaits=awaits,
        )
        if not realm.isascii() or not realm.isprintable() or '"' in realm or "\\" in realm:
            raise ConfigurationError("realm must be printable ASCII without quotes, such as 'api'.")
        self.profiles: tuple[TokenProfile, ...] = (
            (tokens,) if isinstance(tokens, TokenProfile) else tuple(tokens)
        )
        self.issuers: tuple[ExternalIssuer, ...] = tuple(issuers)
        share_keys(self.issuers)
        self.rules: Rules = Rules(
            key_format=KeyFormat() if key_format is None else key_format,
            hasher=KeyHasher() if hasher is None else hasher,
            issuers=(*self.profiles, *self.issuers),
            logins=tuple(logins),
            checks_sessions=find_session is not None,
            shares_principals=lease is not None,
            delegates=may_act_for is not None,
        ).check()
        self.users: AnyUsers | None = users_in(find_owner)
        self.takes_address = takes_address
        self.realm = realm
        self.problem_base = problem_base
        self.clock: Clock = SystemClock() if clock is None else clock
        self._usage = UsageBuffer()
        self.activity: ActivityLog | None = None
        if activity is not None:
            self.activity = ActivityLog(cast("ActivitySettings | Callable[[], object]", activity))
        self._cache: LeaseCache[UserT] | None = None
        if lease is not None:
            for look_up in (find_owner, find_external_owner):
                users = users_in(look_up)
                check_users_shareable(look_up if users is None else users.owner_of)
            self._cache = LeaseCache(lease, clock=self.clock, max_entries=lease_entries)
        self.cached_principal = (
            _no_principal
            if self._cache is None or on_event is not None or overrides_authenticate
            else self._cache.find
        )

    def authorize(self, principal: Principal[UserT], policy: Policy) -> None:
        """Let the principal pass, or raise what :meth:`Policy.check` raises."""
        # Only the age of a login depends on the time, and most policies do not limit it.
        now = _ANY_TIME if policy.max_age is None else self.clock.now()
        policy.check(principal, now)

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
        reference = references.reference_to(
            principal, max_age=max_age, has_session=has_session, now=self.clock.now()
        )
        return references.sign(peppers, reference)

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


def _no_principal(_authorization: Sequence[str | bytes]) -> None:
    """Nothing is cached."""


def not_counted() -> ConfigurationError:
    """The error for the activity of a key where none is counted."""
    return ConfigurationError(
        "This authenticator does not count what keys do. Give it activity=ActivitySettings()."
    )


def refusal(problem: Problem, now: datetime) -> Refusal:
    """The event of a refused request."""
    key_id = problem.key_id if isinstance(problem, CredentialRefused | AddressNotAllowed) else None
    return Refusal(now, problem.code, key_id)
