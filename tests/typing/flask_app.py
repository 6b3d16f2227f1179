"""Read by type checkers: the application's own user class reaches its views."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import assert_type

from flask import Blueprint, Flask
from flask.views import MethodView

from msk_auth import (
    Authenticator,
    Owner,
    Policy,
    Principal,
    Users,
    require,
    require_interactive,
)
from msk_auth.integrations.flask import FlaskAuth
from msk_auth.stores.memory import MemoryKeyStore


@dataclass
class User:
    name: str


def find_owner(owner_id: str) -> Owner[User] | None:
    return Owner(owner_id, frozenset(), User(owner_id))


app = Flask(__name__)
auth = FlaskAuth(Authenticator(MemoryKeyStore(), find_owner=find_owner))
auth.init_app(app)
assert_type(auth, FlaskAuth[User])
assert_type(auth.key_routes(url_prefix="/api/keys", operations=["list_keys"]), Blueprint)


@app.get("/tasks/<int:number>")
@auth.require("tasks:read")
def task(number: int) -> str:
    assert_type(auth.current_principal, Principal[User])
    return auth.current_principal.user.name * number


@app.get("/later")
@auth.require_interactive()
async def later() -> str:
    return assert_type(auth.current_principal.user, User).name


@app.post("/hook")
@auth.require_key("hooks")
def hook() -> str:
    return assert_type(auth.current_principal.user, User).name


@auth.user
def current_user(owner_id: str) -> User | None:
    return User(owner_id)


def load_account(_session: str, owner_id: str) -> bytes | None:
    return owner_id.encode()


def owner_of(_account: bytes) -> Owner[User]:
    return Owner("ada", frozenset(), User("Ada"))


assert_type(
    auth.user(Users(load_account, owner_of, lambda: nullcontext("a session"))), Callable[[], bytes]
)


@app.get("/name")
@auth.require()
def name() -> str:
    return assert_type(current_user(), User).name


@app.get("/public")
@auth.public
def public() -> str:
    return ""


class Tasks(MethodView):
    decorators = [auth.require()]  # noqa: RUF012 - as Flask declares it

    @auth.require_interactive("tasks:run")
    def post(self) -> str:
        return ""


async def by_hand() -> None:
    # A decorated view keeps its parameters and what it returns.
    assert_type(task(number=1), str)
    assert_type(await later(), str)
    assert_type(public(), str)
    assert_type(Tasks().post(), str)
    task("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(auth.admit(Policy()), Principal[User])


admin = Blueprint("admin", __name__)
auth.protect(admin, require("admin:config"), unsafe=require_interactive("admin:config"))
assert_type(auth.is_admitted, bool)
auth.declare_view(app, "static", None)
auth.declare_view(app, "swagger", require("docs"))
auth.protect(app)
auth.check(app)

late = FlaskAuth[User]()
late.init_app(app, Authenticator(MemoryKeyStore(), find_owner=find_owner))
assert_type(late.current_principal, Principal[User])

FlaskAuth("a secret")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
auth.protect(admin, "admin:config")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
