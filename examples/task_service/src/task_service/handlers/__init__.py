r"""Handlers: the kinds of work that tasks can do.

One rule: a handler knows nothing of the database, of users or of HTTP requests to this service. It receives validated
parameters and a log to write to, and returns how it ended. Everything else (leases, timeouts, cancellation, retries after
a crash) is the runner's.

The service ships `http_request` and `command`. A deployer adds another by installing a distribution that names it
in the entry point group `task_service.handlers`::

    # acme_handlers/backup.py
    from task_service.handlers import Handler, HandlerParams, HandlerResult, RunContext

    class BackupParams(HandlerParams):
        bucket: str

    class Backup(Handler[BackupParams]):
        name = "backup"
        title = "Back up"
        description = "Copies the archive to a bucket."
        Params = BackupParams

        async def run(self, params: BackupParams, context: RunContext) -> HandlerResult:
            context.log("stdout", f"Copying to {params.bucket}\n")
            return HandlerResult(exit_code=0)

    # its pyproject.toml
    [project.entry-points."task_service.handlers"]
    backup = "acme_handlers.backup:Backup"

A handler that knows its progress reports it with `RunContext.report_progress`.

A run is started again when its worker dies in the middle (`RunContext.attempt` counts). So a handler whose work must not
happen twice sends `RunContext.run_id` to the other system as an idempotency key, and calls `RunContext.check_lease` before
each step that other systems can see.
"""

from .base import (
    Handler,
    HandlerEnvironment,
    HandlerParams,
    HandlerResult,
    LeaseLost,
    LogSink,
    Progress,
    RunContext,
    RunLease,
    Stream,
)
from .registry import HandlerDescription, HandlerRegistry

__all__ = [
    "Handler",
    "HandlerDescription",
    "HandlerEnvironment",
    "HandlerParams",
    "HandlerRegistry",
    "HandlerResult",
    "LeaseLost",
    "LogSink",
    "Progress",
    "RunContext",
    "RunLease",
    "Stream",
]
