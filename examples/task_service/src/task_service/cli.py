"""The command `task-service`.

An operator's error is one line on stderr, with exit code 1 and without a traceback. Wrong usage has click's exit code 2.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, TextIO
from urllib.parse import urlsplit

import click
from prometheus_client import CollectorRegistry
from uvicorn.loops.auto import auto_loop_factory

from msk_auth import SystemClock
from msk_auth.errors import ConfigurationError, MskAuthError, StoreUnavailable

from .accounts.audit import AuditQuery
from .accounts.roles import ROLE_PERMISSIONS, Role
from .db.copy import copy_database
from .db.migrate import migrate as migrate_database
from .db.paging import PageRequest
from .deployment import check_parameter_keys, forget_deployment_id, forget_secrets
from .doctor import examine, free_space, reported
from .memory import hide_memory, keep_what_exists, return_large_blocks
from .observability import RunMetrics, configure_logging, serve_worker_metrics
from .restore import list_actions, read_export, refuse_what_ended
from .secrets_file import FILE_NAME, load_or_create_secrets
from .server import Server, bind, is_loopback
from .services import Services
from .settings import PREFIX, Settings, load_settings
from .tasks.sealing import any_unsealed, seal_all
from .tasks.tasks import add_example_task
from .worker import RUN_GRACE, Worker

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_REQUEST_GRACE_SECONDS: Final = 10
# For the end of tasks of other packages.
_END_SECONDS: Final = 5.0

P = ParamSpec("P")


class _Commands(click.Group):
    """Prints an error of this package in one line; a bug keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except StoreUnavailable as error:
            reasons = [f"The database cannot answer: {reported(error)}"]
            # `copy-data` runs without valid settings.
            with suppress(ConfigurationError):
                # SQLite may call a full disk an I/O error.
                state, is_scarce = free_space(load_settings().data_dir)
                if is_scarce:
                    reasons.append(f"Only {state}")
            reasons.append("Run: task-service doctor")
            raise click.ClickException(". ".join(reasons)) from None
        except MskAuthError as error:
            raise click.ClickException(str(error)) from None


def _on_services(
    work: Callable[Concatenate[Services, P], Awaitable[None]],
) -> Callable[P, None]:
    """A command with the parts of the service, on a migrated database."""

    @wraps(work)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def with_services() -> None:
            async with _services(load_settings()) as services:
                await work(services, *args, **kwargs)

        asyncio.run(with_services())

    return run


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="task-service")
def main() -> None:
    """A task service whose API takes interactive logins and API keys.

    Its settings are environment variables that begin with TASK_SERVICE_, such as TASK_SERVICE_PORT.
    """


@main.command()
def serve() -> None:
    """Serve the API and the pages, and execute runs."""
    return_large_blocks()
    hide_memory()
    settings = load_settings()
    with bind(settings.host, settings.port) as listener:
        settings = _with_port(settings, listener)
        configure_logging(settings.log_format, settings.log_level)
        with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
            runner.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    stopping = asyncio.Event()

    def stop_after_start(*_: object) -> None:
        # An exception would be raised in the function that runs at this moment, and some callers swallow it.
        stopping.set()
        _end_at_once()

    _on_stop(stop_after_start)
    # Only `serve` needs FastAPI and the pages.
    from .app import create_app

    app = create_app(settings)
    services: Services = app.state.services
    server = Server(
        app,
        host=settings.host,
        grace_seconds=_REQUEST_GRACE_SECONDS,
        on_stopping=services.stopping.set,
    )
    # Not by uvicorn, so that an error of the start is one line of output.
    async with app.router.lifespan_context(app):
        await _greet(services)
        keep_what_exists()
        # uvicorn has its own handlers, and raises a signal again after it has stopped.
        _on_stop(_leave)
        if stopping.is_set():
            return
        # Clients that connect from now on wait for the server.
        _notify_systemd()
        await server.serve(sockets=[listener])


@main.command()
@click.option(
    "--concurrency",
    type=click.IntRange(1, 64),
    help="The number of runs to execute at once; TASK_SERVICE_WORKERS by default.",
)
@click.option(
    "--grace",
    "grace_seconds",
    type=click.IntRange(0, 86_400),
    default=int(RUN_GRACE.total_seconds()),
    show_default=True,
    help="The seconds that runs may continue after a signal to stop, before they return to the queue.",
)
def worker(concurrency: int | None, grace_seconds: int) -> None:
    """Execute runs, beside a `serve` on the same PostgreSQL database.

    Any number of workers may run on any number of machines. SIGTERM or SIGINT stops one gracefully, a second signal
    immediately.
    """
    return_large_blocks()
    hide_memory()
    settings = load_settings()
    if concurrency is not None:
        settings = settings.model_copy(update={"workers": concurrency})
    if settings.on_sqlite:
        raise click.UsageError(
            "With SQLite `task-service serve` executes the runs itself."
            " For separate workers set TASK_SERVICE_DATABASE_URL to a PostgreSQL database."
        )
    configure_logging(settings.log_format, settings.log_level)
    # The event loop of `serve`: it waits for PostgreSQL with fewer system calls than asyncio's own.
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        last_resort = threading.Timer(_END_SECONDS, _end_process, (runner.get_loop(),))
        runner.run(_work(settings, timedelta(seconds=grace_seconds)))
        # The loop now waits for the tasks of other packages: a queue may wait very long for a lost database.
        last_resort.start()
    last_resort.cancel()


@main.command()
@click.option(
    "--finish",
    is_flag=True,
    help="Also apply changes with which older versions cannot run, and seal the secrets of all tasks with the current pepper."
    " Stop all processes of older versions first.",
)
@click.option(
    "--new-secrets",
    is_flag=True,
    help="Accept this machine's secrets in place of those that other processes use: after secrets.json was lost, or an old"
    " entry was removed from it. Keys and logins made with the other secrets are lost.",
)
@click.option(
    "--new-deployment",
    is_flag=True,
    help="Give the deployment a new id, after its database was copied from another deployment. All logins end when you"
    " restart the processes.",
)
def migrate(finish: bool, new_secrets: bool, new_deployment: bool) -> None:
    """Bring the database to this version's schema. `serve` and `worker` do so too."""
    asyncio.run(_migrate(load_settings(), finish, new_secrets, new_deployment))


@main.command("parameter-keys")
def parameter_keys() -> None:
    """Print the setting with which workers open the secrets in the parameters of tasks.

    The keys are derived from the peppers in the data folder. Run this command on a machine that serves, and again after
    each rotation of the pepper. The keys and the database are enough to read these secrets, and no others.
    """
    settings = load_settings()
    settings.create_data_dir()
    found = load_or_create_secrets(settings.data_dir, SystemClock().now())
    click.echo(f"{PREFIX}PARAMETER_KEYS={found.parameter_keys.to_text()}")


@main.command("copy-data")
@click.option(
    "--from", "source", required=True, help="The database to copy, such as sqlite:////path/to/file."
)
@click.option(
    "--to",
    "target",
    required=True,
    envvar="TASK_SERVICE_DATABASE_URL",
    help="The empty database to fill; TASK_SERVICE_DATABASE_URL by default.",
)
def copy_data(source: str, target: str) -> None:
    """Copy all data to another database, such as from SQLite to PostgreSQL.

    Stop the service first: later writes are not copied. The command copies everything or nothing. API keys and logins
    stay valid with the same secrets. Every user of this machine can read a command's options, so write no password
    into them: name the target in TASK_SERVICE_DATABASE_URL, or set PGPASSWORD.
    """
    copied = asyncio.run(copy_database(source, target))
    for table, rows in copied.items():
        click.echo(f"{rows:10}  {table}")
    click.echo(
        "Everything is copied, and counted on both sides. Now\n"
        f"  1. copy {FILE_NAME}, with the peppers and token keys, from the data folder to that of each\n"
        "     machine, mode 0600: without it every API key and login is refused;\n"
        "  2. set TASK_SERVICE_DATABASE_URL to the new database on each of them, and start them."
    )


@main.command("after-restore")
@click.option(
    "--audit",
    "audit_log",
    # `read_export` refuses a line with bytes that are no text.
    type=click.File("r", encoding="utf-8", errors="surrogateescape"),
    help="An export of the audit log with format=jsonl that is newer than the backup; - reads standard input.",
)
@_on_services
async def after_restore(services: Services, audit_log: TextIO | None) -> None:
    """End the runs, logins, keys and users that a restored backup would bring back. Start no process on the database before.

    The command cancels queued and running runs, and ends all logins. With an export of the audit log, it also revokes the
    keys and disables the users that were revoked and disabled since the backup, and lists other changes, so that you can
    make them again.
    """
    entries = read_export(() if audit_log is None else audit_log)
    newest = await services.audit.list(AuditQuery(), PageRequest(limit=1))
    for entry in newest.items:
        click.echo(f"The newest entry of the audit log here: {entry.at.isoformat()}")
    done = await refuse_what_ended(services, entries)
    click.echo(f"Runs cancelled: {done.runs}. Logins ended: {done.sessions}.")
    click.echo(f"Keys revoked: {done.keys}. Users disabled: {done.users}.")
    for line in await list_actions(services, entries):
        click.echo(f"Not repeated: {line}")
    if audit_log is None:
        click.echo(
            "Keys and users that were revoked or disabled since the backup are active.\n"
            "If you have an export of the audit log, run: task-service after-restore --audit FILE"
        )


@main.group()
def users() -> None:
    """Create and disable users."""


@users.command("create")
@click.argument("name")
@click.option("--role", type=click.Choice(sorted(ROLE_PERMISSIONS)), required=True)
@click.option(
    "--password-stdin",
    is_flag=True,
    help="Read the password from standard input instead of printing a link to choose a password.",
)
@_on_services
async def create_user(services: Services, name: str, role: Role, password_stdin: bool) -> None:
    """Add the user NAME, and print a one-time link to choose the password."""
    if password_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
        user = await services.users.create(name, [role], password=password)
        click.echo(f"{user.username} can log in.")
    else:
        invitation = await services.invitations.create_user(name, [role])
        click.echo(f"{invitation.user.username} can choose a password, once, with this link:")
        click.echo(invitation.invitation_url)


@users.command("disable")
@click.argument("name")
@_on_services
async def disable_user(services: Services, name: str) -> None:
    """Refuse every login and every key of the user or service account NAME."""
    user = await services.users.get_by_name(name)
    store = services.service_accounts if user.service_account else services.users
    await store.change(user.id, disabled=True)
    click.echo(f"{user.username} is disabled.")


@main.command()
def doctor() -> None:
    """Check settings, files and database, and print a remedy for each problem."""
    findings = examine()
    for finding in findings:
        click.echo(f"{'ok' if finding.ok else 'problem':8} {finding.subject}: {finding.message}")
    sys.exit(not all(finding.ok for finding in findings))


async def _migrate(
    settings: Settings, finish: bool, new_secrets: bool, new_deployment: bool
) -> None:
    async with _services(settings, new_secrets=new_secrets) as services:
        if new_deployment:
            await forget_deployment_id(services.db)
        # Opening the services has already migrated; this applies and reports the remaining steps.
        later = await migrate_database(services.db, finish=finish)
        if finish and (sealed := await seal_all(services.db, services.parameters)):
            click.echo(f"Tasks and runs whose secrets were sealed: {sealed}.")
        unfinished = later or await any_unsealed(services.db, services.parameters)
    click.echo("The database has this version's schema.")
    if unfinished:
        click.echo(
            "After the last process of an older version has stopped, run: task-service migrate --finish"
        )


def _notify_systemd() -> None:
    """Report that the process has started (sd_notify(3)), if systemd started it as Type=notify."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notification:
            notification.sendto(b"READY=1", f"\0{address[1:]}" if address[0] == "@" else address)


async def _greet(services: Services) -> None:
    """Print the service's address, and how to log in."""
    invitation = await services.invitations.create_for_first_administrator()
    base_url = services.settings.base_url
    click.echo(f"\n  The task service is at  {base_url}")
    if invitation is None:
        click.echo(f"  Log in at               {base_url}/login")
    else:
        await add_example_task(services.db, services.clock, invitation.user.id)
        click.echo(f"  Choose a password for the administrator {invitation.user.username!r}:")
        click.echo(f"                          {invitation.invitation_url}")
    if base_url.startswith("http://") and not is_loopback(urlsplit(base_url).hostname or ""):
        click.echo(
            "  Browsers on other machines keep a login only over https: put a TLS proxy in front\n"
            "  of the service, and set TASK_SERVICE_BASE_URL to its https:// address."
        )
    click.echo(f"  Its data is in          {services.settings.data_dir}\n")


async def _work(settings: Settings, grace: timedelta) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_in_order() -> None:
        stop.set()
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
        # Other workers then take over its runs.
        _end_at_once()

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop_in_order)
    registry = CollectorRegistry()
    worker = Worker.beside(settings, RunMetrics(registry))
    try:
        await migrate_database(worker.db)
        keys = await check_parameter_keys(worker.db, settings.parameter_keys)
        log = logging.getLogger(__name__)
        log.info("keys for the secrets of tasks: %s", keys)
        log.info("executing runs as %s", worker.runner.worker_runs.worker_id)
        if port := settings.worker_metrics_port:
            serve_worker_metrics(registry, settings.host, port)
        _notify_systemd()
        await worker.execute_runs(stop, grace)
    finally:
        await worker.db.close()
        if worker.tracing is not None:
            await worker.tracing.close()


@asynccontextmanager
async def _services(settings: Settings, *, new_secrets: bool = False) -> AsyncGenerator[Services]:
    """The parts of the service on a migrated database, for a command.

    The first command on a database decides its secrets.
    """
    services = Services(settings)
    try:
        await migrate_database(services.db)
        if new_secrets:
            await forget_secrets(services.db)
        await services.agree_on_secrets()
        yield services
    finally:
        await services.close()


def _with_port(settings: Settings, listener: socket.socket) -> Settings:
    """The settings with the bound port instead of 0, and the defaults that depend on it."""
    if settings.port != 0:
        return settings
    chosen = settings.model_dump(include=settings.model_fields_set)
    return Settings(**{**chosen, "port": listener.getsockname()[1]})


def _end_process(loop: asyncio.AbstractEventLoop) -> None:
    names = ", ".join(sorted(task.get_name() for task in asyncio.all_tasks(loop)))
    log = logging.getLogger(__name__)
    log.warning("ending the process, because tasks do not end: %s", names)
    os._exit(0)


def _on_stop(handler: Callable[..., None]) -> None:
    for number in _STOP_SIGNALS:
        signal.signal(number, handler)


def _end_at_once() -> None:
    """Let the next signal end the process. The default of a signal has no effect on the first process of a container."""
    _on_stop(lambda *_: os._exit(0))


def _leave(*_: object) -> NoReturn:
    sys.exit(0)
