"""The audit log for administrators: pages of JSON, or a whole export as CSV or JSON lines."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names at run time.

import csv
import io
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from dataclasses import asdict, fields
from typing import Annotated, Any, Final, Literal, Self

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from starlette.responses import StreamingResponse

from msk_auth.integrations.fastapi import FastAPIAuth
from task_service.accounts.audit import Audit, AuditEntry, AuditQuery
from task_service.accounts.users import User
from task_service.db.paging import Page

from .json_route import Moment, WantedPage, rfc3339
from .openapi import Responses

AUDIT: Final = "admin:audit"

Format = Literal["csv", "jsonl"]

_MEDIA_TYPES: Final[dict[Format, str]] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl",
}
_COLUMNS: Final = [field.name for field in fields(AuditEntry)]
# A spreadsheet evaluates a cell that begins with one of these as a formula (OWASP, CSV injection).
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


class Actor(BaseModel):
    """The user who acted, with the present name."""

    id: str
    username: str | None


class UsedCredential(BaseModel):
    """The key or login session that was used; `kind` is `system` for the service itself, `none` without a login.

    `name` is the name of a key.
    """

    kind: str
    id: str | None
    name: str | None


class AuditEntrySchema(BaseModel):
    """One audited event."""

    id: int
    at: Moment
    action: str
    actor: Actor | None
    credential: UsedCredential
    target: str | None
    address: str | None
    details: dict[str, Any]

    @classmethod
    def of(cls, entry: AuditEntry) -> Self:
        """An entry as JSON."""
        actor = entry.actor_id and Actor(id=entry.actor_id, username=entry.actor_name)
        return cls(
            id=entry.id,
            at=entry.at,
            action=entry.action,
            actor=actor or None,
            credential=UsedCredential(
                kind=entry.credential_kind, id=entry.credential_id, name=entry.key_name
            ),
            target=entry.target,
            address=entry.address,
            details=dict(entry.details),
        )


AuditList = Page[AuditEntrySchema]


def add_audit_routes(router: APIRouter, auth: FastAPIAuth[User], audit: Audit) -> None:
    """Add the routes under `/audit` to the router of administration."""
    auditor = auth.require_interactive(AUDIT)

    @router.get("/audit", dependencies=[auditor])
    async def list_audit(query: Annotated[AuditQuery, Depends()], page: WantedPage) -> AuditList:
        """List the entries of the audit log, newest first.

        An `action` that ends with a dot, such as `key.`, selects every action with that prefix. `key` is the id of an API key, and
        finds changes of the key and actions with the key. `routine=false` leaves out logins and runs. With `count` the answer
        has the number of all entries found.
        """
        return audit_list(await audit.list(query, page))

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


def audit_list(page: Page[AuditEntry]) -> AuditList:
    """A page of the audit log for the API."""
    items = [AuditEntrySchema.of(entry) for entry in page.items]
    return AuditList(items=items, next_cursor=page.next_cursor, total=page.total)


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
    return AuditEntrySchema.of(entry).model_dump_json() + "\n"


def _csv_row(entry: AuditEntry) -> str:
    details = json.dumps(dict(entry.details), ensure_ascii=False)
    cells = (asdict(entry) | {"at": rfc3339(entry.at), "details": details}).values()
    return _csv("" if cell is None else _escape_formula(str(cell)) for cell in cells)


def _escape_formula(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def _csv(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()
