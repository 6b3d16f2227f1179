"""Which tokens of an issuer stand for a person's login: an application's rule, and in doubt none of them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

from msk_auth.core.errors import ConfigurationError
from msk_auth.core.logins import raised_at

_log = logging.getLogger("msk_auth")

Rule: TypeAlias = Callable[[Mapping[str, object]], bool]


class InteractiveRule:
    """A rule that the application wrote, kept safe: only True counts, and an exception is logged once.

    Args:
        issuer: Whose tokens it is about.
        rule: Given the claims; None if the application wrote none.

    Raises:
        ConfigurationError: It is not a plain function.
    """

    def __init__(self, issuer: str, rule: Rule | None) -> None:
        # What an async function returns is not True, so every login would be a machine's.
        if rule is not None and (
            not callable(cast("object", rule)) or inspect.iscoroutinefunction(rule)
        ):
            raise ConfigurationError(
                "interactive must be a plain function that takes the claims and returns a bool."
            )
        self._issuer = issuer
        self.rule = rule
        self._warned = False

    def applies_to(self, claims: Mapping[str, object]) -> bool:
        """Whether a token with these claims stands for a person's login."""
        if self.rule is None:
            self._warn_once(
                "there is no rule that says which of them are logins. Pass interactive=… to its"
                " TokenProfile."
            )
            return False
        try:
            return self.rule(claims) is True
        except Exception as error:  # noqa: BLE001 - a rule may raise anything on claims it did not expect
            # Neither the message nor a traceback: both may quote a claim.
            self._warn_once(
                f"its rule `interactive` raised {type(error).__name__} at {raised_at(error)}."
                " Let the rule return False for claims that it does not know."
            )
            return False

    def _warn_once(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "a token of the issuer %r counts as a machine's, not as a person's login: %s"
                " This is logged once.",
                self._issuer,
                reason,
            )
