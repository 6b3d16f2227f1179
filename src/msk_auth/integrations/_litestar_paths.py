"""What handlers demand by their path: for those of other plugins, which take neither guards nor an `opt`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, cast

from msk_auth._route_audit.own_guard import OwnGuard
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.policy import Policy

_ENTRY: Final = re.compile(r"/|(/[^/*]+)+(/\*)?")


class PathPolicies:
    """Policies by the paths that handlers are registered under. The paths of requests play no part.

    Args:
        policies: The entry `/jobs` is for that path alone, `/jobs/*` for it and all below it. None means public, `own_guard` that
            the application guards it itself.

    Raises:
        ConfigurationError: An entry has another form, or no policy.
    """

    def __init__(self, policies: Mapping[str, Policy | OwnGuard | None]) -> None:
        for entry, policy in cast("Mapping[object, object]", policies).items():
            if not isinstance(entry, str) or not _ENTRY.fullmatch(entry):
                raise ConfigurationError(
                    f"{entry!r} in paths is no path. Write '/jobs' for one path as the route audit lists it, or"
                    " '/jobs/*' for it and all below it. For every handler there is default=…."
                )
            check_policy(policy, f"paths[{entry!r}]")
        self._policies = dict(policies)

    def find(self, path: str) -> tuple[Policy, ...] | OwnGuard | None:
        """What the handlers of a path demand: empty if they are public, None if no entry is for them.

        The longest entry counts.
        """
        entry, above = path, path
        while entry not in self._policies:
            if not above:
                return None
            entry, above = f"{above}/*", above.rpartition("/")[0]
        policy = self._policies[entry]
        if isinstance(policy, Policy):
            return (policy,)
        return () if policy is None else policy


def check_policy(policy: object, name: str) -> None:
    """Check an argument that is a policy, `own_guard` or None.

    Raises:
        ConfigurationError: It is something else.
    """
    if policy is not None and not isinstance(policy, Policy | OwnGuard):
        raise ConfigurationError(
            f"{name} is no policy: {policy!r}. Write require(…), require_interactive(…) or own_guard of msk_auth, or None."
        )
