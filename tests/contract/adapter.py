"""The contract of an adapter for another framework: a world, an application, and a table of requests with their responses.

Write this application with your adapter, and a driver that sends requests to it. Then subclass `AdapterContract`. The
second column below is the guard of each route; the responses are JSON.

::

    GET  /public          public
    GET  /me              authenticated
    GET  /whoami          any credential
    GET  /beside          authenticated, and tasks:read, as two guards
    GET  /tasks           tasks:read
    POST /tasks/run       tasks:run
    GET  /about/TASK_ID   tasks:read, of the resource task:TASK_ID
    GET  /both            tasks:read and tasks:run, as two guards
    *    /admin/config    interactive, admin:config (GET and PATCH)
    POST /fresh           interactive, logged in within the last MAX_AGE
    GET  /login           a login
    GET  /key             API key
    POST /hook            API key, tasks:run
    GET  /missing         authenticated; raises TaskNotFound, a problem of the application's own
    GET  /busy            public; raises TooManyAttempts(30)
    GET  /boom            public; raises Surprise, which no handler handles
         /api/keys        the key routes
         /api/own-keys    the key routes create_key and revoke_key alone
    GET  /api/own-keys    any credential; the application's own
         /api/admin/keys  the key routes for administrators, for logins of the last `MAX_AGE` with `admin:config`

`/me`, `/whoami`, `/beside`, `/tasks`, `/tasks/run`, `/about`, `/both`, `/fresh`, `/login`, `/key`, `/hook` and
`GET /api/own-keys` respond with
`describe(principal)`, the others with any object, all with status 200.

Made by an adapter with `header="X-API-Key"`, the application answers `KEY_HEADER_CASES` as well, and all of `CASES` but "credentials
in X-API-Key".

For `WebSocketContract` it has websockets as well, which accept after the principal was admitted:

::

    WS   /ws              authenticated; sends describe(principal) as JSON, and closes
    WS   /ws/admin        interactive; closes
    WS   /ws/missing      authenticated; raises TaskNotFound before it accepts
    WS   /ws/talk         authenticated; answers every text with talk(text, principal)
    WS   /ws/watch        authenticated; awaits outstay(authenticator, principal) in a block of watch(principal)
    WS   /ws/again        authenticated; awaits revoke(authenticator, principal), and then verify_again
    WS   /ws/admit        authenticated; at the first text awaits revoke(authenticator, principal), and then admits again

For `StreamContract` it has streaming responses. A blocking adapter uses `lines_blocking` and
`revoke_blocking`:

::

    GET  /follow          authenticated; streams watch(principal).stream(lines(authenticator, principal))
    GET  /again           authenticated; awaits revoke(authenticator, principal), and then verify_again
"""

from __future__ import annotations

from .adapter_contract import CASES, KEY_HEADER_CASES, AdapterContract, AdapterDriver, Reply
from .case import Case
from .stream_contract import (
    StreamContract,
    lines,
    lines_blocking,
    outstay,
    revoke,
    revoke_blocking,
)
from .websocket_contract import (
    POLICY_VIOLATION,
    Conversation,
    WebSocketContract,
    WebSocketDriver,
    talk,
)
from .world import (
    MAX_AGE,
    PEOPLE,
    START,
    BreakableStore,
    Surprise,
    TaskNotFound,
    User,
    World,
    describe,
    fill,
    make_world,
)

__all__ = [
    "CASES",
    "KEY_HEADER_CASES",
    "MAX_AGE",
    "PEOPLE",
    "POLICY_VIOLATION",
    "START",
    "AdapterContract",
    "AdapterDriver",
    "BreakableStore",
    "Case",
    "Conversation",
    "Reply",
    "StreamContract",
    "Surprise",
    "TaskNotFound",
    "User",
    "WebSocketContract",
    "WebSocketDriver",
    "World",
    "describe",
    "fill",
    "lines",
    "lines_blocking",
    "make_world",
    "outstay",
    "revoke",
    "revoke_blocking",
    "talk",
]
