from dataclasses import dataclass
from uuid import UUID


@dataclass
class Credentials:
    email: str
    password: str


@dataclass
class UserOut:
    id: UUID
    email: str


@dataclass
class BookIn:
    title: str


@dataclass
class BookOut:
    id: UUID
    title: str


@dataclass
class NewPassword:
    old: str
    new: str
