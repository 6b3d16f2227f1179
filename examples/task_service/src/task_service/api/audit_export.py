"""The audit log as a file: CSV for spreadsheets, JSON lines for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, Literal

from starlette.responses import StreamingResponse

from task_service.accounts.audit import MAX_PAGE, Audit, AuditQuery
from task_service.accounts.shapes import audit_json

Format = Literal["csv", "jsonl"]

_MEDIA_TYPES: Final[dict[Format, str]] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/jsonl",
}
_COLUMNS: Final = (
    "id",
    "at",
    "action",
    "actor_id",
    "actor_name",
    "credential_kind",
    "credential_id",
    "target",
    "address",
    "details",
)
# What a spreadsheet would take for the beginning of a formula (OWASP, CSV injection).
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


async def export(audit: Audit, query: AuditQuery, form: Format) -> StreamingResponse:
    """Every entry that the query finds, newest first, as a download.

    It is read page by page as it is sent, so its length does not matter. The first page is read before the answer
    begins: a query that is wrong or a database that does not answer get a status that says so.
    """
    render = _csv_row if form == "csv" else _json_line
    page = await audit.list(query, limit=MAX_PAGE)

    async def rows() -> AsyncIterator[str]:
        nonlocal page
        if form == "csv":
            yield _csv(_COLUMNS)
        while True:
            yield "".join(render(audit_json(entry)) for entry in page.items)
            if page.next_cursor is None:
                return
            page = await audit.list(query, cursor=page.next_cursor, limit=MAX_PAGE)

    return StreamingResponse(
        rows(),
        media_type=_MEDIA_TYPES[form],
        headers={
            "Content-Disposition": f'attachment; filename="audit.{form}"',
            "Cache-Control": "no-store",
        },
    )


def _json_line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"


def _csv_row(entry: dict[str, Any]) -> str:
    actor = entry["actor"] or {"id": "", "username": ""}
    credential = entry["credential"]
    cells = (
        entry["id"],
        entry["at"],
        entry["action"],
        actor["id"],
        actor["username"],
        credential["kind"],
        credential["id"],
        entry["target"],
        entry["address"],
        json.dumps(entry["details"], ensure_ascii=False),
    )
    return _csv(["" if cell is None else _harmless(str(cell)) for cell in cells])


def _harmless(cell: str) -> str:
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def _csv(cells: Iterable[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()
