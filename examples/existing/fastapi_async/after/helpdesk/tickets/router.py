from collections.abc import Sequence

from fastapi import APIRouter

from helpdesk.database import DB
from helpdesk.keys import KeyUser, Writer, auth
from helpdesk.tickets import service
from helpdesk.tickets.models import Ticket
from helpdesk.tickets.schemas import TicketIn, TicketOut

router = APIRouter(prefix="/tickets", tags=["tickets"])
reads = [auth.require("tickets:read")]
writes = [auth.require("tickets:write")]


@router.get("", response_model=list[TicketOut], dependencies=reads)
async def list_tickets(db: DB, user: KeyUser) -> Sequence[Ticket]:
    return await service.get_of_user(db, user)


@router.post("", response_model=TicketOut, status_code=201, dependencies=writes)
async def create_ticket(db: DB, user: KeyUser, new: TicketIn) -> Ticket:
    return await service.create(db, user, new)


@router.post("/{ticket_id}/close", response_model=TicketOut)
async def close_ticket(db: DB, user: KeyUser, writer: Writer, ticket_id: int) -> Ticket:
    return await service.close(db, user, ticket_id, "tickets:close_any" in writer.permissions)
