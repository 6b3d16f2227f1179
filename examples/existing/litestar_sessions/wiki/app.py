from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from litestar import Litestar

from .auth import session_auth
from .db import engine
from .models import Base
from .routes import change_password, list_pages, log_in, log_out, remove_page, write_page


@asynccontextmanager
async def open_database(_: Litestar) -> AsyncGenerator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


def create_app() -> Litestar:
    return Litestar(
        [
            log_in,
            log_out,
            change_password,
            list_pages,
            write_page,
            remove_page,
        ],
        on_app_init=[session_auth.on_app_init],
        lifespan=[open_database],
    )
