from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, HTTPException
from fastapi.security import OAuth2PasswordRequestForm
from sqlmodel import select

from .deps import CurrentUser, SessionDep, Superuser
from .models import Item, ItemCreate, NewPassword, Token, User, UserPublic
from .security import create_access_token, hasher, verify_password

router = APIRouter()


@router.post("/login/access-token")
def log_in(session: SessionDep, form: Annotated[OAuth2PasswordRequestForm, Depends()]) -> Token:
    user = session.exec(select(User).where(User.email == form.username)).first()
    if user is None or not verify_password(form.password, user.hashed_password):
        raise HTTPException(400, "Incorrect email or password")
    return Token(access_token=create_access_token(user))


@router.get("/users", response_model=list[UserPublic])
def list_users(session: SessionDep, _: Superuser) -> Sequence[User]:
    return session.exec(select(User)).all()


@router.get("/users/me", response_model=UserPublic)
def read_me(user: CurrentUser) -> User:
    return user


@router.patch("/users/me/password", status_code=204)
def change_password(session: SessionDep, user: CurrentUser, new: NewPassword) -> None:
    if not verify_password(new.current_password, user.hashed_password):
        raise HTTPException(400, "Incorrect password")
    user.hashed_password = hasher.hash(new.new_password)
    session.add(user)
    session.commit()


@router.get("/items")
def list_items(session: SessionDep, user: CurrentUser) -> Sequence[Item]:
    return session.exec(select(Item).where(Item.owner_id == user.id)).all()


@router.post("/items", status_code=201)
def create_item(session: SessionDep, user: CurrentUser, new: ItemCreate) -> Item:
    item = Item.model_validate(new, update={"owner_id": user.id})
    session.add(item)
    session.commit()
    session.refresh(item)
    return item


@router.delete("/items/{item_id}", status_code=204)
def delete_item(session: SessionDep, user: CurrentUser, item_id: UUID) -> None:
    item = session.get(Item, item_id)
    if item is None or (item.owner_id != user.id and not user.is_superuser):
        raise HTTPException(404, "Item not found")
    session.delete(item)
    session.commit()
