"""Health checks and metrics for monitoring: public, without users' data."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

from typing import Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy import text
from starlette.responses import JSONResponse, Response

from msk_auth import TokenProfile
from msk_auth.errors import StoreUnavailable
from task_service.db.engine import Database
from task_service.observability import Metrics
from task_service.tasks.status import runs_by_state

from .openapi import Responses


class Health(BaseModel):
    """The service is healthy."""

    status: Literal["ok"] = "ok"


def health_router(db: Database, metrics: Metrics, tokens: TokenProfile) -> APIRouter:
    """`/healthz`, `/readyz`, `/metrics`, and the public keys of the logins if they are asymmetric."""
    router = APIRouter(tags=["Operation"])

    @router.get("/healthz")
    async def check_alive() -> Health:
        """Check that the process is alive."""
        return Health()

    @router.get("/readyz")
    async def check_ready() -> Health:
        """Check that the process can serve requests, because its database answers."""
        async with db.read() as connection:
            await connection.execute(text("SELECT 1"))
        return Health()

    @router.get("/metrics", response_class=Response, responses=_METRICS_RESPONSES)
    async def read_metrics() -> Response:
        """Read the metrics, in Prometheus' text format."""
        try:
            metrics.set_runs(await runs_by_state(db))
        except StoreUnavailable:
            # During an outage the other metrics are still needed; stale counts of runs would mislead.
            metrics.set_runs({})
        return Response(metrics.render(), media_type=metrics.content_type)

    if tokens.jwks()["keys"]:

        @router.get("/.well-known/jwks.json", response_class=JSONResponse)
        async def read_public_keys() -> JSONResponse:
            """Read the public keys with which logins are signed (RFC 7517)."""
            return JSONResponse(tokens.jwks(), headers={"cache-control": "public, max-age=300"})

    return router


_METRICS_RESPONSES: Final[Responses] = {
    200: {"content": {"text/plain": {}}, "description": "The metrics."}
}
