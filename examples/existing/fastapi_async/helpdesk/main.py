from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from helpdesk.database import engine
from helpdesk.exceptions import add_handlers
from helpdesk.tickets.router import router as tickets
from helpdesk.users.router import router as users


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    yield
    await engine.dispose()


api = APIRouter(prefix="/api/v1")
api.include_router(users)
api.include_router(tickets)

app = FastAPI(title="Help desk", lifespan=lifespan)
app.include_router(api)
add_handlers(app)


@app.get("/healthz")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}
