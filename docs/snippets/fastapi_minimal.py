from fastapi import FastAPI

from msk_auth import AsyncAuthenticator, Owner
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore


async def find_owner(name): return Owner(name, {"tasks:read"}, user=name)  # fmt: skip


auth = FastAPIAuth(AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner))
app = auth.install(FastAPI())


@app.get("/tasks", dependencies=[auth.require("tasks:read")])
async def tasks():
    return ["water the plants"]
