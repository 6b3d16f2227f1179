r"""Handlers: the kinds of work that tasks can do.

One rule: a handler does not use the database, users or HTTP requests of this service. It receives validated
parameters and a log, and returns a result. The runner does everything else: leases, timeouts, cancellation, retries after
a crash.

The service has the handlers `http_request` and `command`. To add a handler, install a distribution that names it
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

If a worker dies, another worker starts its runs again (`RunContext.attempt` counts the attempts). A handler whose work must
not happen twice must send `RunContext.run_id` to the other system as an idempotency key, and call `RunContext.check_lease`
before each step that other systems can see.
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
