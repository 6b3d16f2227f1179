from pydantic import BaseModel, ConfigDict, Field


class TicketIn(BaseModel):
    title: str = Field(min_length=1, max_length=200)


class TicketOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: int
    title: str
    is_open: bool
