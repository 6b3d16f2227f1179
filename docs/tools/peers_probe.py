"""Asks packages what they do, by using them. Run by `peers.py` in an environment of their own.

Each function answers for one package, by the names of `QUESTIONS` in `peers.py`, without what does not apply. The answers go
to the standard output as JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROUNDS = 15


def measured(call: Callable[[], object]) -> float:
    """The least processor time of a call in microseconds, after one to warm up: what else the machine does is no part of it."""
    call()
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.process_time()
        call()
        times.append((time.process_time() - began) * 1e6)
    return round(min(times), 1)


async def measured_async(call: Callable[[], Awaitable[object]]) -> float:
    """As `measured`, for what is awaited."""
    await call()
    times: list[float] = []
    for _ in range(ROUNDS):
        began = time.process_time()
        await call()
        times.append((time.process_time() - began) * 1e6)
    return round(min(times), 1)


async def answer_of(app: Any, method: str, path: str, **options: Any) -> tuple[int, str | None]:
    """Status and challenge of a request to an ASGI application."""
    import httpx

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
        response = await client.request(method, path, **options)
        return response.status_code, response.headers.get("www-authenticate")


async def ask_msk_auth() -> dict[str, Any]:
    """This library, with FastAPI and SQLite."""
    from fastapi import FastAPI
    from sqlalchemy.ext.asyncio import create_async_engine

    from msk_auth import ApiKey, AsyncAuthenticator, Owner, SystemClock, local_principal
    from msk_auth.integrations.fastapi import FastAPIAuth
    from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, prepare_sqlite
    from msk_auth.stores.sqlalchemy.migrations import upgrade

    async def find_owner(user_id: str) -> Owner[str]:
        return Owner(user_id, frozenset(), user_id)

    with tempfile.TemporaryDirectory() as folder:
        engine = create_async_engine(f"sqlite+aiosqlite:///{Path(folder) / 'keys.db'}")
        prepare_sqlite(engine)
        async with engine.connect() as connection:
            await connection.run_sync(upgrade)
        store = AsyncSQLAlchemyKeyStore(engine)
        authenticator = AsyncAuthenticator(store, find_owner=find_owner)
        auth = FastAPIAuth(authenticator)
        app = auth.install(FastAPI())
        app.include_router(auth.key_routes(prefix="/keys"))

        @app.get("/guarded", dependencies=[auth.require()])
        async def guarded() -> None: ...

        principal = local_principal(
            await find_owner("ada"), at=SystemClock().now(), interactive=True
        )
        key = await authenticator.create_key(principal, name="probe")
        bearer = f"Bearer {key.value.reveal()}"
        other = AsyncAuthenticator(store, find_owner=find_owner, lease=timedelta(milliseconds=250))
        await other.authenticate([bearer])
        took = await measured_async(lambda: authenticator.authenticate([bearer]))
        before = await store.find(key.record.id)
        await authenticator.authenticate([bearer])
        writes = before != await store.find(key.record.id)
        headers = {"Authorization": bearer}
        by_key, _ = await answer_of(app, "POST", "/keys", json={"name": "mine"}, headers=headers)
        await authenticator.revoke_key(principal, key.record.id)
        revoked, _ = await answer_of(app, "GET", "/guarded", headers=headers)
        accepted = await _accepts(lambda: other.authenticate([bearer]))
        await other.flush()
        record = await store.find(key.record.id)
        again = record is None or record.revoked_at is None
        missing, challenge = await answer_of(app, "GET", "/guarded")
        unguarded, _ = await answer_of(app, "POST", "/keys", json={"name": "mine"})
        await store.aclose()
        await engine.dispose()
    return {
        "microseconds": took,
        "writes_on_each_request": writes,
        "key_has_an_owner": "owner_id" in {field.name for field in dataclasses.fields(ApiKey)},
        "routes_open_as_shipped": unguarded < 400,
        "key_makes_keys": by_key < 400,
        "missing": missing,
        "challenge": challenge,
        "revoked": revoked,
        "revoked_accepted_from_cache": accepted,
        "revoked_active_again": again,
    }


async def ask_keyshield() -> dict[str, Any]:
    """Keyshield with FastAPI, SQLAlchemy on SQLite, and its cache."""
    import aiocache
    from fastapi import Depends, FastAPI
    from keyshield import ApiKeyService
    from keyshield.api import create_api_keys_router, create_depends_api_key
    from keyshield.domain.entities import ApiKey
    from keyshield.hasher.argon2 import Argon2ApiKeyHasher
    from keyshield.repositories.sql import SqlAlchemyApiKeyRepository
    from keyshield.services.cached import CachedApiKeyService
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    hasher = Argon2ApiKeyHasher(pepper="a pepper of the probe")
    no_delay: dict[str, Any] = {"min_delay": 0, "max_delay": 0}
    with tempfile.TemporaryDirectory() as folder:
        engine = create_async_engine(f"sqlite+aiosqlite:///{Path(folder) / 'keys.db'}")
        session = async_sessionmaker(engine, expire_on_commit=False)
        async with session() as first, session() as second:
            repository = SqlAlchemyApiKeyRepository(first)
            await repository.ensure_table(engine)
            service = ApiKeyService(repository, hasher)
            entity, key = await service.create(name="probe")
            await first.commit()

            app = FastAPI()
            app.include_router(create_api_keys_router(_giving(service)))
            guard = create_depends_api_key(_giving(ApiKeyService(repository, hasher, **no_delay)))

            @app.get("/guarded", dependencies=[Depends(guard)])
            async def guarded() -> None: ...

            without_delay = ApiKeyService(repository, hasher, **no_delay)
            took = await measured_async(lambda: without_delay.verify_key(key))
            before = (await service.get_by_id(entity.id_)).last_used_at
            await without_delay.verify_key(key)
            writes = before != (await service.get_by_id(entity.id_)).last_used_at
            missing, challenge = await answer_of(app, "GET", "/guarded")
            unguarded, _ = await answer_of(app, "POST", "/api-keys/", json={"name": "mine"})
            headers = {"Authorization": f"Bearer {key}"}
            by_key, _ = await answer_of(
                app, "POST", "/api-keys/", json={"name": "mine"}, headers=headers
            )
            await first.commit()

            # Two processes, each with a cache in its own memory: one has used the key, the other revokes it.
            here = CachedApiKeyService(
                repository, hasher, aiocache.SimpleMemoryCache(namespace="here"), **no_delay
            )
            await here.verify_key(key)
            await first.commit()
            first.expunge_all()
            elsewhere = ApiKeyService(SqlAlchemyApiKeyRepository(second), hasher, **no_delay)
            revoked = await elsewhere.get_by_id(entity.id_)
            revoked.disable()
            await elsewhere.update(revoked)
            await second.commit()
            accepted = await _accepts(lambda: here.verify_key(key))
            await first.commit()
            second.expunge_all()
            again = (await elsewhere.get_by_id(entity.id_)).is_active
            revoked.disable()
            await elsewhere.update(revoked)
            await second.commit()
            first.expunge_all()
            status, _ = await answer_of(app, "GET", "/guarded", headers=headers)
        await engine.dispose()
    return {
        "microseconds": took,
        "writes_on_each_request": writes,
        "key_has_an_owner": any(
            "owner" in field.name or "user" in field.name for field in dataclasses.fields(ApiKey)
        ),
        "routes_open_as_shipped": unguarded < 400,
        "key_makes_keys": by_key < 400,
        "missing": missing,
        "challenge": challenge,
        "revoked": status,
        "revoked_accepted_from_cache": accepted,
        "revoked_active_again": again,
        "facts": {
            "hash": entity.key_hash.split("$")[1],
            "delay_seconds": [
                _default(ApiKeyService, "min_delay"),
                _default(ApiKeyService, "max_delay"),
            ],
            "cache_seconds": _default(CachedApiKeyService, "cache_ttl"),
            "has": _present(
                {
                    "Django": _module("keyshield.django"),
                    "Quart": _module("keyshield.quart_api"),
                    "a command line": entry_points(group="console_scripts", name="keyshield"),
                    "keys from environment variables": hasattr(ApiKeyService, "load_dotenv"),
                }
            ),
        },
    }


def ask_drf_api_key() -> dict[str, Any]:
    """djangorestframework-api-key with Django REST framework's defaults and SQLite."""
    import django
    from django.conf import settings
    from django.core.management import call_command

    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "rest_framework",
            "rest_framework_api_key",
        ],
        ROOT_URLCONF=__name__,
        USE_TZ=True,
    )
    django.setup()
    call_command("migrate", verbosity=0)

    from rest_framework.response import Response
    from rest_framework.test import APIRequestFactory
    from rest_framework.views import APIView
    from rest_framework_api_key.models import APIKey
    from rest_framework_api_key.permissions import HasAPIKey

    class Guarded(APIView):
        permission_classes = [HasAPIKey]  # noqa: RUF012 - as its documentation writes it

        def get(self, request: Any) -> Response:
            return Response()

    view, requests = Guarded.as_view(), APIRequestFactory()
    record, key = APIKey.objects.create_key(name="probe")
    took = measured(lambda: APIKey.objects.is_valid(key))
    before = APIKey.objects.values().get(pk=record.pk)
    APIKey.objects.is_valid(key)
    writes = before != APIKey.objects.values().get(pk=record.pk)
    missing = view(requests.get("/"))
    record.revoked = True
    record.save()
    revoked = view(requests.get("/", headers={"Authorization": f"Api-Key {key}"}))
    return {
        "microseconds": took,
        "writes_on_each_request": writes,
        "key_has_an_owner": any(
            field.is_relation
            for field in APIKey._meta.get_fields()  # noqa: SLF001 - Django's own public name
        ),
        "missing": missing.status_code,
        "challenge": missing.headers.get("WWW-Authenticate"),
        "revoked": revoked.status_code,
        "facts": {
            "hash": record.hashed_key.split("$")[0],
            "has": _present(
                {
                    "admin": _module("rest_framework_api_key.admin"),
                    "migrations": _module("rest_framework_api_key.migrations"),
                    "permissions": _module("rest_framework_api_key.permissions"),
                }
            ),
        },
    }


urlpatterns: list[object] = []
"""Django wants a module with its routes; the probe calls its one view itself."""


async def ask_litestar_api_auth() -> dict[str, Any]:
    """litestar-api-auth with SQLAlchemy on SQLite and its management routes."""
    from litestar import Litestar, get
    from litestar_api_auth import APIAuthConfig, APIAuthPlugin, mint_api_key, require_api_key
    from litestar_api_auth.backends.base import APIKeyInfo
    from litestar_api_auth.backends.sqlalchemy import SQLAlchemyBackend, SQLAlchemyConfig
    from litestar_api_auth.service import hash_api_key
    from sqlalchemy.ext.asyncio import create_async_engine

    with tempfile.TemporaryDirectory() as folder:
        engine = create_async_engine(f"sqlite+aiosqlite:///{Path(folder) / 'keys.db'}")
        backend = SQLAlchemyBackend(SQLAlchemyConfig(engine=engine))
        await backend.startup()

        @get("/guarded", guards=[require_api_key])
        async def guarded() -> None: ...

        app = Litestar([guarded], plugins=[APIAuthPlugin(APIAuthConfig(backend=backend))])
        key, info = await mint_api_key(
            backend, name="probe", scopes=["api_keys:admin"], prefix="pyorg_"
        )
        headers = {"X-API-Key": key}
        took = await measured_async(lambda: backend.get(hash_api_key(key)))
        await answer_of(app, "GET", "/guarded", headers=headers)
        before = await backend.get(info.key_hash)
        await answer_of(app, "GET", "/guarded", headers=headers)
        writes = before != await backend.get(info.key_hash)
        missing, challenge = await answer_of(app, "GET", "/guarded")
        made = {"name": "mine", "scopes": ["api_keys:admin"]}
        unguarded, _ = await answer_of(app, "POST", "/api-keys", json=made)
        by_key, _ = await answer_of(app, "POST", "/api-keys", json=made, headers=headers)
        await backend.revoke(info.key_hash)
        revoked, _ = await answer_of(app, "GET", "/guarded", headers=headers)
        await engine.dispose()
    return {
        "microseconds": took,
        "writes_on_each_request": writes,
        "key_has_an_owner": any(
            "owner" in name or "user" in name for name in APIKeyInfo.__struct_fields__
        ),
        "routes_open_as_shipped": unguarded < 400,
        "key_makes_keys": by_key < 400,
        "missing": missing,
        "challenge": challenge,
        "revoked": revoked,
        "facts": {"has": _present({"Redis": _module("litestar_api_auth.backends.redis")})},
    }


async def ask_litestar_security() -> dict[str, Any]:
    """litestar-security with API keys; where they are kept, it leaves to the application."""
    from litestar import Litestar, get
    from litestar_security import Principal, SecurityConfig, SecurityPlugin
    from litestar_security.providers.api_key import APIKeyConfig, APIKeyState
    from litestar_security.testing import InMemoryAPIKeyStore

    async def observe(*_event: object) -> None: ...

    class Resolver:
        async def resolve(self, claims: Any) -> Any:
            return Principal(id=claims.subject_id)

    config = APIKeyConfig(
        store=InMemoryAPIKeyStore(observe),
        pepper=b"a pepper of the probe, long enough",
        identity_resolver=Resolver(),
    )
    service = config.build(Resolver())[2]

    @get("/guarded")
    async def guarded() -> None: ...

    app = Litestar([guarded], plugins=[SecurityPlugin(SecurityConfig(api_key=config))])
    key = await service.issue(subject_id="ada")
    headers = {"X-API-Key": key.value}
    missing, challenge = await answer_of(app, "GET", "/guarded")
    accepted, _ = await answer_of(app, "GET", "/guarded", headers=headers)
    if accepted != 200:
        raise RuntimeError("the probe's own key was refused")
    await service.revoke(key.key_id)
    revoked, _ = await answer_of(app, "GET", "/guarded", headers=headers)
    return {
        "key_has_an_owner": "subject_id"
        in {field.name for field in dataclasses.fields(APIKeyState)},
        "missing": missing,
        "challenge": challenge,
        "revoked": revoked,
        "facts": {
            "has": sorted(
                {"api_key", "local_auth", "mfa", "oauth", "passkeys"}
                & {field.name for field in dataclasses.fields(SecurityConfig)}
            )
        },
    }


def ask_flask_jwt_extended() -> dict[str, Any]:
    """flask-jwt-extended with its defaults: it has tokens and no keys."""
    import flask_jwt_extended
    from flask import Flask
    from flask_jwt_extended import JWTManager, create_access_token, jwt_required

    app = Flask("probe")
    app.config["JWT_SECRET_KEY"] = "a secret of the probe, long enough for HMAC"
    JWTManager(app)

    @app.get("/guarded")
    @jwt_required()
    def guarded() -> dict[str, str]:
        return {}

    with app.app_context():
        token = create_access_token("ada")
    client = app.test_client()
    missing = client.get("/guarded")
    twice = client.get("/guarded", headers=[("Authorization", f"Bearer {token}")])
    if twice.status_code != 200:
        raise RuntimeError("the probe's own token was refused")
    has = {
        "refresh tokens": hasattr(flask_jwt_extended, "create_refresh_token"),
        "cookies": hasattr(flask_jwt_extended, "set_access_cookies"),
        "protection against cross-site requests": hasattr(flask_jwt_extended, "get_csrf_token"),
        "blocklists": hasattr(JWTManager, "token_in_blocklist_loader"),
    }
    return {
        "missing": missing.status_code,
        "challenge": missing.headers.get("WWW-Authenticate"),
        "facts": {"has": _present(has)},
    }


def ask_flask_security() -> dict[str, Any]:
    """Flask-Security with its authentication tokens: it has logins and no keys."""
    import flask_security
    from flask import Flask
    from flask_security import Security, SQLAlchemyUserDatastore, auth_required
    from flask_security.models import fsqla_v3
    from flask_sqlalchemy import SQLAlchemy

    app = Flask("probe")
    app.config.update(
        SECRET_KEY="a secret of the probe, long enough for HMAC",
        SECURITY_PASSWORD_SALT="a salt of the probe",
        SQLALCHEMY_DATABASE_URI="sqlite://",
    )
    database: Any = SQLAlchemy(app)
    fsqla_v3.FsModels.set_db_info(database)

    class Role(database.Model, fsqla_v3.FsRoleMixin): ...

    class User(database.Model, fsqla_v3.FsUserMixin): ...

    Security(app, SQLAlchemyUserDatastore(database, User, Role))

    @app.get("/guarded")
    @auth_required("token")
    def guarded() -> dict[str, str]:
        return {}

    with app.app_context():
        database.create_all()
    missing = app.test_client().get("/guarded", headers={"Accept": "application/json"})
    has = {
        "registration": hasattr(flask_security, "RegisterForm"),
        "password resets": hasattr(flask_security, "ResetPasswordForm"),
        "two factors": hasattr(flask_security, "TwoFactorSetupForm"),
        "passkeys": hasattr(flask_security, "WebAuthnMixin"),
    }
    return {
        "missing": missing.status_code,
        "challenge": missing.headers.get("WWW-Authenticate"),
        "facts": {"has": _present(has)},
    }


async def ask_fastapi_users() -> dict[str, Any]:
    """fastapi-users with a bearer transport and its JWT strategy: it has logins and no keys."""
    from fastapi import Depends, FastAPI
    from fastapi_users import BaseUserManager, FastAPIUsers
    from fastapi_users.authentication import AuthenticationBackend, BearerTransport, JWTStrategy

    backend: Any = AuthenticationBackend(
        name="jwt",
        transport=BearerTransport(tokenUrl="login"),
        get_strategy=lambda: JWTStrategy("a secret of the probe, long enough for HMAC", 3600),
    )

    async def manager() -> Any:
        yield BaseUserManager(None)  # type: ignore[arg-type]

    users: Any = FastAPIUsers(manager, [backend])
    app = FastAPI()

    @app.get("/guarded", dependencies=[Depends(users.current_user(active=True))])
    async def guarded() -> None: ...

    has = {
        "registers": hasattr(users, "get_register_router"),
        "verifies": hasattr(users, "get_verify_router"),
        "resets": hasattr(users, "get_reset_password_router"),
        "OAuth": hasattr(users, "get_oauth_router"),
    }
    missing, challenge = await answer_of(app, "GET", "/guarded")
    return {"missing": missing, "challenge": challenge, "facts": {"has": _present(has)}}


def _default(kind: type, argument: str) -> Any:
    """What an argument of a class is by default."""
    return inspect.signature(kind).parameters[argument].default


def _module(name: str) -> bool:
    return find_spec(name) is not None


def _present(found: Mapping[str, object]) -> list[str]:
    """The names of what was found."""
    return sorted(name for name, is_there in found.items() if is_there)


def _giving(service: Any) -> Callable[[], Awaitable[Any]]:
    async def give() -> Any:
        return service

    return give


async def _accepts(call: Callable[[], Awaitable[object]]) -> bool:
    try:
        await call()
    except Exception:  # noqa: BLE001 - each package refuses in its own way
        return False
    return True


def main() -> None:
    """Ask them all."""
    warnings.simplefilter("ignore")
    asked = {
        "msk-auth": lambda: asyncio.run(ask_msk_auth()),
        "keyshield": lambda: asyncio.run(ask_keyshield()),
        "djangorestframework-api-key": ask_drf_api_key,
        "litestar-api-auth": lambda: asyncio.run(ask_litestar_api_auth()),
        "litestar-security": lambda: asyncio.run(ask_litestar_security()),
        "flask-jwt-extended": ask_flask_jwt_extended,
        "flask-security": ask_flask_security,
        "fastapi-users": lambda: asyncio.run(ask_fastapi_users()),
    }
    answers = {name: {"version": version(name), **ask()} for name, ask in asked.items()}
    json.dump(answers, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
