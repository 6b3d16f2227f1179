"""Plain routes are called directly, and answer what FastAPI answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Any

import httpx2
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel

from task_service.api.direct_call import direct_call
from task_service.api.json_route import JsonRoute, Limit
from task_service.app import create_app
from task_service.settings import Settings

pytestmark = pytest.mark.anyio


class Item(BaseModel):
    id: str
    note: str | None = None


@dataclass
class Row:
    id: str
    secret: str = "not in the model"


async def depended_on() -> str:
    return "x"


async def show_item(item_id: Annotated[str, Path(alias="itemId", max_length=3)]) -> Item:
    return Item(id=item_id)


async def show_row(limit: Limit = 5, search: str | None = None) -> Item:
    return Row(f"{limit} {search}")  # type: ignore[return-value]


async def show_bytes(more: bool = False) -> Response:
    return Response(b"more" if more else b"bytes")


PLAIN: dict[str, Callable[..., Any]] = {
    "/items/{itemId}": show_item,
    "/rows": show_row,
    "/bytes": show_bytes,
}


def application(route_class: type[APIRoute]) -> FastAPI:
    router = APIRouter(route_class=route_class)
    for path, endpoint in PLAIN.items():
        router.add_api_route(path, endpoint, response_model_exclude_unset=True)
    app = FastAPI()
    app.router.routes.extend(router.routes)
    return app


@pytest.mark.parametrize(
    "target",
    [
        "/items/a",
        "/items/a?itemId=b",
        "/items/a%20b",
        "/items/abcd",
        "/rows",
        "/rows?limit=7",
        "/rows?limit=7&search=a+b%26c&other=1",
        "/rows?search=",
        "/rows?limit=",
        "/rows?limit=seven",
        "/bytes",
        "/bytes?more=true",
        "/bytes?more=perhaps",
    ],
)
async def test_a_plain_route_answers_what_fastapi_answers(target: str) -> None:
    answers: list[tuple[object, ...]] = []
    for route_class in (JsonRoute, APIRoute):
        transport = httpx2.ASGITransport(app=application(route_class))
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            response = await client.get(target)
        body = response.json() if response.status_code == 422 else response.content
        if isinstance(body, dict):
            # The service words these itself.
            body = [error["loc"] for error in body["detail"]]
        answers.append((response.status_code, response.headers.multi_items(), body))
    (direct, by_fastapi) = answers
    assert direct[0] == by_fastapi[0]
    assert direct[2] == by_fastapi[2]
    if direct[0] == 200:
        assert direct[1] == by_fastapi[1]


async def test_a_parameter_that_is_sent_twice_is_refused() -> None:
    transport = httpx2.ASGITransport(app=application(JsonRoute))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.get("/rows?limit=1&limit=1")
    assert response.status_code == 422
    assert [error["loc"] for error in response.json()["detail"]] == [["query", "limit"]]


async def with_header(name: Annotated[str | None, Header()] = None) -> Item:
    raise NotImplementedError


async def with_request(request: Request) -> Item:
    raise NotImplementedError


async def with_response(response: Response) -> Item:
    raise NotImplementedError


async def with_dependency(value: Annotated[str, Depends(depended_on)]) -> Item:
    raise NotImplementedError


async def with_required_parameter(search: str) -> Item:
    raise NotImplementedError


async def with_mutable_default(search: Annotated[list[str], Query()] = []) -> Item:  # noqa: B006
    raise NotImplementedError


async def with_body(item: Item) -> Item:
    raise NotImplementedError


async def without_a_type():  # type: ignore[no-untyped-def]
    raise NotImplementedError


def blocking() -> Item:
    raise NotImplementedError


@pytest.mark.parametrize(
    "endpoint",
    [
        with_header,
        with_request,
        with_response,
        with_dependency,
        with_required_parameter,
        with_mutable_default,
        with_body,
        without_a_type,
        blocking,
    ],
)
def test_any_other_route_is_left_to_fastapi(endpoint: Callable[..., Any]) -> None:
    assert direct_call(APIRoute("/", endpoint)) is None


@pytest.mark.parametrize("options", [{"status_code": 201}, {"response_class": JSONResponse}])
def test_a_route_with_another_response_is_left_to_fastapi(options: dict[str, Any]) -> None:
    assert direct_call(APIRoute("/", show_row)) is not None
    assert direct_call(APIRoute("/", show_row, **options)) is None


def test_what_is_asked_for_most_often_is_plain(tmp_path: FilePath) -> None:
    plain = {
        route.path
        for route in create_app(Settings(data_dir=tmp_path / "data")).routes
        if isinstance(route, JsonRoute) and direct_call(route) is not None
    }
    assert plain >= {
        "/healthz",
        "/readyz",
        "/api/auth/me",
        "/api/tasks",
        "/api/tasks/{taskId}",
        "/api/tasks/{taskId}/runs",
        "/api/runs/{runId}",
    }
