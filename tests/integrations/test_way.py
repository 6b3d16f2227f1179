"""The way from the `Authorization` header to the `Principal`: at most ten functions of the library, in one direction.

It begins with the function that the framework calls to have a request verified, a guard or a middleware. A function is on the
way if it is on the stack when the principal is made, or if it returned the coroutine of one that is. Each counts
once, however often it is entered, and a lambda counts as the function that contains it. A function that returns before the
principal is made (a look-up, a digest, the parser of a key) is not on the way: its name says what a reader has to know.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import CodeType, CoroutineType, FrameType

import pytest
from anyio import to_thread
from sqlalchemy import Engine, MetaData, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from tests.contract.adapter import PEOPLE, User
from tests.integrations.adapters import ADAPTERS, send

import msk_auth
from msk_auth import AsyncAuthenticator, Authenticator, Owner, Principal, local_principal
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, SQLAlchemyKeyStore, api_key_table

pytestmark = pytest.mark.anyio

LIBRARY = str(Path(msk_auth.__file__).parent)
METADATA = MetaData()
TABLE = api_key_table(METADATA)

MADE: CodeType = vars(Principal)["__init__"].__code__

# From the headers to the principal; it is the same for every adapter.
AWAITED = [
    "AsgiAuth._verify",
    "admit",
    "AsyncAuthenticator.authenticate",
    "AsyncAuthenticator._verify",
    "AsyncVerifier.authenticate",
    "AsyncVerifier._act_by_key",
]
WAYS = {
    "fastapi": ["Guard.__call__", "FastAPIAuth._admit", *AWAITED],
    "starlette": ["StarletteAuth._guard.<locals>.decorate.<locals>.guarded", *AWAITED],
    "litestar": [
        "AsgiAuth._serve.<locals>.serve",
        "LitestarAuth._last_middleware.<locals>.admit_and_continue",
        "LitestarAuth._admit",
        *AWAITED,
    ],
    "flask": [
        "FlaskAuth._admitting.<locals>.admit_request",
        "FlaskAuth._verify",
        "admit",
        "Authenticator.authenticate",
        "Authenticator._verify",
        "Verifier.authenticate",
        "Verifier._act_by_key",
    ],
}


class Way:
    """A profile function that finds which functions of the library lead to the first principal.

    Attributes:
        found: Their qualified names, the first one first.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        # From the code of a coroutine to that of the function that returned it.
        self._returned_by: dict[CodeType, CodeType] = {}

    def __call__(self, frame: FrameType, event: str, result: object) -> None:
        code = frame.f_code
        if event == "call" and code is MADE and not self.found:
            self.found = list(dict.fromkeys(reversed(list(self._leading_to(frame)))))
        elif event == "return" and isinstance(result, CoroutineType):
            self._returned_by.setdefault(result.cr_code, code)

    def _leading_to(self, made: FrameType) -> Iterator[str]:
        frame = made.f_back
        # What is further out than a function of the framework leads to other places as well.
        while frame is not None and frame.f_code.co_filename.startswith(LIBRARY):
            code: CodeType | None = frame.f_code
            while code is not None:
                yield code.co_qualname.replace(".<locals>.<lambda>", "")
                code = self._returned_by.get(code)
            frame = frame.f_back


@contextmanager
def recorded() -> Generator[Way]:
    way = Way()
    before = sys.getprofile()
    sys.setprofile(way)
    try:
        yield way
    finally:
        sys.setprofile(before)


async def find_owner(owner_id: str) -> Owner[User] | None:
    return PEOPLE.get(owner_id)


@pytest.fixture
def key(engine: Engine) -> str:
    with closing(SQLAlchemyKeyStore(engine, TABLE)) as store:
        authenticator = Authenticator(store, find_owner=PEOPLE.get)
        created = authenticator.create_key(
            local_principal(PEOPLE["alice"], at=datetime.now(UTC), interactive=True), name="laptop"
        )
    return created.value.reveal()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/keys.db")
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


async def way_in(adapter: str, engine: Engine, key: str) -> Way:
    """The way of a request that presents a key to a guarded route."""
    if adapter == "flask":
        return await to_thread.run_sync(way_in_flask, engine, key)
    async_engine = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
    store = AsyncSQLAlchemyKeyStore(async_engine, TABLE)
    app = ADAPTERS[adapter](AsyncAuthenticator(store, find_owner=find_owner))
    with recorded() as way:
        reply = await send(app, "GET", b"/tasks", [(b"authorization", f"Bearer {key}".encode())])
    await store.aclose()
    await async_engine.dispose()
    assert reply.status == 200
    return way


def way_in_flask(engine: Engine, key: str) -> Way:
    with closing(SQLAlchemyKeyStore(engine, TABLE)) as store:
        app = ADAPTERS["flask"](Authenticator(store, find_owner=PEOPLE.get)).app
        with recorded() as way:
            reply = app.test_client().get("/tasks", headers={"Authorization": f"Bearer {key}"})
    assert reply.status_code == 200
    return way


@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_at_most_ten_functions_lead_from_the_header_to_the_principal(
    adapter: str, engine: Engine, key: str
) -> None:
    way = await way_in(adapter, engine, key)
    assert way.found == WAYS[adapter]
    assert len(way.found) <= 10
