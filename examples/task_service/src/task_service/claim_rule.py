"""Rules in settings that select people of the identity provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClaimRule:
    """Selects the people whose ID token has a claim with this value, or with a list that contains it.

    Attributes:
        claim: The claim; None means every user of the provider.
        value: The claim's value; `true` also means the JSON value.
    """

    claim: str | None
    value: str = ""

    @classmethod
    def parse(cls, text: str) -> ClaimRule:
        """Read `groups=task-users`, or `*` for every user.

        Raises:
            ValueError: The text has another form.
        """
        claim, separator, value = text.strip().partition("=")
        if claim == "*" and not separator:
            return cls(None)
        if claim in {"", "*"} or not value:
            raise ValueError("write a claim and its value, such as groups=task-users")
        return cls(claim, value)

    def applies_to(self, claims: Mapping[str, object]) -> bool:
        """True if the rule selects the user with these claims."""
        if self.claim is None:
            return True
        found = claims.get(self.claim)
        if isinstance(found, bool):
            return found and self.value == "true"
        return self.value in found if isinstance(found, list) else found == self.value
