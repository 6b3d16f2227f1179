from sqlalchemy import ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from helpdesk.database import Base


class Ticket(Base):
    __tablename__ = "tickets"

    title: Mapped[str] = mapped_column(String(200))
    is_open: Mapped[bool] = mapped_column(default=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), index=True)
