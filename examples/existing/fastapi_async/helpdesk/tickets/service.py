from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from helpdesk.exceptions import NotFound
from helpdesk.tickets.models import Ticket
from helpdesk.tickets.schemas import TicketIn
from helpdesk.users.models import User


async def get_of_user(db: AsyncSession, user: User) -> Sequence[Ticket]:
    query = select(Ticket).where(Ticket.user_id == user.id).order_by(Ticket.id)
    return (await db.scalars(query)).all()


async def create(db: AsyncSession, user: User, new: TicketIn) -> Ticket:
    ticket = Ticket(title=new.title, user_id=user.id)
    db.add(ticket)
    await db.commit()
    return ticket


async def close(db: AsyncSession, user: User, ticket_id: int) -> Ticket:
    ticket = await db.get(Ticket, ticket_id)
    if ticket is None or (ticket.user_id != user.id and user.role != "admin"):
        raise NotFound
    ticket.is_open = False
    await db.commit()
    return ticket
