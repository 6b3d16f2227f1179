from collections.abc import Sequence

from fastapi import APIRouter

from helpdesk.database import DB
from helpdesk.tickets import service
from helpdesk.tickets.models import Ticket
from helpdesk.tickets.schemas import TicketIn, TicketOut
from helpdesk.users.dependencies import CurrentUser

router = APIRouter(prefix="/tickets", tags=["tickets"])


@router.get("", response_model=list[TicketOut])
async def list_tickets(db: DB, user: CurrentUser) -> Sequence[Ticket]:
    return await service.get_of_user(db, user)


@router.post("", response_model=TicketOut, status_code=201)
async def create_ticket(db: DB, user: CurrentUser, new: TicketIn) -> Ticket:
    return await service.create(db, user, new)


@router.post("/{ticket_id}/close", response_model=TicketOut)
async def close_ticket(db: DB, user: CurrentUser, ticket_id: int) -> Ticket:
    return await service.close(db, user, ticket_id)
