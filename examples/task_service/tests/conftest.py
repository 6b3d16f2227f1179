"""The service and the people who use it."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest import mock

import pytest
from argon2.profiles import CHEAPEST
from examples.task_service.tests.accounts_support import KINDS, World, world
from examples.task_service.tests.oidc_provider import (
    TestProvider,
    at_provider,
    running_provider,
    wait_for_a_busy_machine,
)
from examples.task_service.tests.runs_support import migrated
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    BASE_URL,
    USER_PASSWORD,
    Caller,
    LoggedIn,
    Service,
    make_template,
    run_elsewhere,
    running_service,
)

from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore
from task_service.db import engine as engine_module
from task_service.provider_login import CALLBACK
from task_service.services import Services
from task_service.settings import Settings

_PATIENCE = 60


@pytest.fixture(autouse=True)
def _no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a developer has set for their own service is not for the tests."""
    for name in list(os.environ):
        if name.startswith("TASK_SERVICE_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session", autouse=True)
def _patient_databases() -> Iterator[None]:
    """No test fails because a loaded machine took longer than a service lets its database take. Tests of that set a time."""
    with (
        mock.patch.object(engine_module, "_BLOCK_SECONDS", _PATIENCE),
        mock.patch.object(engine_module, "_WAIT_SECONDS", _PATIENCE),
        # Few connections for each of many databases, so that two runs of the tests fit on a server of PostgreSQL (100).
        mock.patch.dict(engine_module._POOL, pool_timeout=_PATIENCE, pool_size=3, max_overflow=1),
        mock.patch.dict(engine_module.POSTGRES_CONNECT, connect_timeout=_PATIENCE),
    ):
        yield


@pytest.fixture(autouse=True)
def _patient_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As :func:`_patient_databases`, for the library's stores; for each test, since the library's own tests are not patient."""
    monkeypatch.setattr(AsyncSQLAlchemyKeyStore, "read_seconds", _PATIENCE)
    monkeypatch.setattr(AsyncSQLAlchemyKeyStore, "write_seconds", _PATIENCE)
    monkeypatch.setattr("msk_auth.batching.READ_SECONDS", _PATIENCE)


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """A command run inside a test sends this process's log to a stream that is closed when it returns."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with users in it; made once, since hashing and migrating take their time."""
    folder = tmp_path_factory.mktemp("template") / "data"
    run_elsewhere(make_template(folder))
    return folder


@pytest.fixture(scope="session")
def logged_in(template: Path) -> LoggedIn:
    return LoggedIn(template)


@pytest.fixture
async def service(logged_in: LoggedIn, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    """A service with an administrator and a user; always in the same place, for its engine's sake."""
    wanted = {"admin": ("ada", ADMIN_PASSWORD), "user": ("ulf", USER_PASSWORD)}
    # In the order of the fixtures, which is that of the logins.
    people = tuple(wanted[name] for name in request.fixturenames if name in wanted)
    logins = await logged_in.template(*people)
    async with running_service(
        logins.folder,
        logged_in.place(),
        shared_routes=True,
        housekeeping=False,
        behind=logins.age,
    ) as running:
        running.tokens.update(logins.tokens)
        yield running


@pytest.fixture
async def admin(service: Service) -> Caller:
    """The administrator, logged in."""
    return await service.person("ada", ADMIN_PASSWORD)


@pytest.fixture
async def user(service: Service) -> Caller:
    """A user, logged in."""
    return await service.person("ulf", USER_PASSWORD)


@pytest.fixture
async def admin_key(service: Service, admin: Caller) -> Caller:
    """A program with an API key of the administrator."""
    return await service.key_for(admin)


@pytest.fixture
async def user_key(service: Service, user: Caller) -> Caller:
    """A program with an API key of the user."""
    return await service.key_for(user)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestProvider]:
    """An identity provider."""
    wait_for_a_busy_machine(monkeypatch)
    with running_provider(BASE_URL + CALLBACK) as running:
        yield running


@pytest.fixture
async def service_at_provider(
    template: Path, logged_in: LoggedIn, provider: TestProvider
) -> AsyncIterator[Service]:
    """A service in which all people of the provider may log in."""
    settings = at_provider(provider)
    async with running_service(
        template, logged_in.place(), shared_routes=True, housekeeping=False, **settings
    ) as running:
        yield running


@pytest.fixture(params=KINDS)
async def it(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """All that knows accounts, on each database."""
    async with world(request.param, tmp_path) as it:
        yield it


@pytest.fixture
async def lite(tmp_path: Path) -> AsyncIterator[World]:
    """As `it`, for what does not depend on the database."""
    async with world("sqlite", tmp_path) as it:
        yield it


@pytest.fixture(params=KINDS)
async def services(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Services]:
    """The parts of a service that does not serve, on each database."""
    async with migrated(request.param, tmp_path) as url:
        settings = Settings(data_dir=tmp_path / "data", database_url=url)
        settings.create_data_dir()
        services = Services(settings, password_hashing=CHEAPEST)
        await services.join_deployment()
        yield services
        await services.close()
