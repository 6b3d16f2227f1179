"""The audit entries of what the routes of tasks and runs did."""

from __future__ import annotations

import logging
from typing import Any

from msk_auth import Principal, StoreUnavailable
from task_service.accounts.audit import Audit

_log = logging.getLogger(__name__)


class Trail:
    """Records what has happened already.

    The change is committed when its entry is written, and the answer must say so whatever becomes of the entry: a
    client that is told 503 would do it again. An entry that cannot be written goes to the log instead.
    """

    def __init__(self, audit: Audit) -> None:
        self._audit = audit

    async def add(
        self, principal: Principal[Any], action: str, target: str, **details: object
    ) -> None:
        """Add an entry.

        Args:
            principal: Who did it.
            action: What, such as `task.created`.
            target: The id of what it was done to.
            details: What else is worth knowing.
        """
        try:
            await self._audit.record(action, principal=principal, target=target, details=details)
        except StoreUnavailable:
            _log.error(
                "not in the audit log: %s of %s by %s with %s",
                action,
                target,
                principal.owner.id,
                principal.key_id or principal.session_id,
            )
