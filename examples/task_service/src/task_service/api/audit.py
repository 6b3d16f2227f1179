"""The audit log for administrators: pages of JSON, or a whole export as CSV or JSON lines."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Query
from starlette.responses import StreamingResponse

from msk_auth.integrations.fastapi import FastAPIAuth
from task_service.accounts.audit import TIME, Audit, AuditEntry, AuditQuery
from task_service.accounts.users import User
from task_service.db.paging import Page

from .json_route import WantedPage
from .openapi import Responses

AUDIT: Final = "admin:audit"

Format = Literal["csv", "jsonl"]

_MEDIA_TYPES: Final[dict[Format, str]] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl",
}
_COLUMNS: Final[Mapping[str, Callable[[AuditEntry], object]]] = {
    "id": lambda entry: entry.id,
    "at": lambda entry: f"{entry.at:{TIME}}",
    "action": lambda entry: entry.action,
    "actor_id": lambda entry: entry.actor and entry.actor.id,
    "actor_name": lambda entry: entry.actor and entry.actor.username,
    "credential_kind": lambda entry: entry.credential.kind,
    "credential_id": lambda entry: entry.credential.id,
    "target": lambda entry: entry.target,
    "address": lambda entry: entry.address,
    "details": lambda entry: json.dumps(entry.details, ensure_ascii=False),
    "key_name": lambda entry: entry.credential.name,
}
# A spreadsheet evaluates a cell that begins with one of these as a formula (OWASP, CSV injection).
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def add_audit_routes(router: APIRouter, auth: FastAPIAuth[User], audit: Audit) -> None:
    """Add the routes under `/audit` to the router of administration."""
    auditor = auth.require_interactive(AUDIT)

    @router.get("/audit", dependencies=[auditor])
    async def list_audit(
        query: Annotated[AuditQuery, Depends()], page: WantedPage
    ) -> Page[AuditEntry]:
        """List the entries of the audit log, newest first.

        An `action` that ends with a dot, such as `key.`, selects every action with that prefix. `key` is the id of an API key, and
        finds changes of the key and actions with the key. `routine=false` leaves out logins and runs. With `count` the answer
        has the number of all entries found.
        """
        return await audit.list(query, page)

    @router.get(
        "/audit/export",
        dependencies=[auditor],
        response_class=StreamingResponse,
        responses=_EXPORT_RESPONSES,
    )
    async def export_audit(
        query: Annotated[AuditQuery, Depends()],
        form: Annotated[Format, Query(alias="format")] = "csv",
    ) -> StreamingResponse:
        """Download the entries of the audit log as one file."""
        return await _export(audit, query, form)


_EXPORT_RESPONSES: Final[Responses] = {
    200: {"content": {"text/csv": {}, "application/jsonl": {}}, "description": "The entries."}
}


async def _export(audit: Audit, query: AuditQuery, form: Format) -> StreamingResponse:
    """Every entry that the query finds, newest first, as a download.

    Pages are read while the file is sent, so the file may be long. The first page is read before the response
    begins, so that an invalid query or an unavailable database gets its own status.
    """
    render = _csv_row if form == "csv" else _json_line
    pages = audit.pages(query)
    first = await anext(pages)

    async def rows() -> AsyncIterator[str]:
        async with aclosing(pages):
            if form == "csv":
                yield _csv(_COLUMNS)
            yield "".join(render(entry) for entry in first)
            async for page in pages:
                yield "".join(render(entry) for entry in page)

    return StreamingResponse(
        rows(),
        media_type=_MEDIA_TYPES[form],
        headers={"Content-Disposition": f'attachment; filename="audit.{form}"'},
    )


def _json_line(entry: AuditEntry) -> str:
    return entry.model_dump_json() + "\n"


def _csv_row(entry: AuditEntry) -> str:
    cells = (read(entry) for read in _COLUMNS.values())
    return _csv("" if cell is None else _escape_formula(str(cell)) for cell in cells)


def _escape_formula(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def _csv(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()
