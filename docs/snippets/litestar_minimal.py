from litestar import Litestar, get

from msk_auth import AsyncAuthenticator, Owner
from msk_auth.integrations.litestar import LitestarAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore


async def find_owner(name): return Owner(name, {"tasks:read"}, user=name)  # fmt: skip


auth = LitestarAuth(AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner))


@get("/tasks", guards=[auth.require("tasks:read")])
async def tasks() -> list[str]:
    return ["water the plants"]


app = Litestar([tasks], plugins=[auth])
