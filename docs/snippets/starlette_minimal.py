from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from msk_auth import AsyncAuthenticator, Owner
from msk_auth.integrations.starlette import StarletteAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore


async def find_owner(name): return Owner(name, {"tasks:read"}, user=name)  # fmt: skip


auth = StarletteAuth(AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner))
tasks = auth.require("tasks:read")(lambda _: JSONResponse(["water the plants"]))
app = auth.install(Starlette(routes=[Route("/tasks", tasks)]))
