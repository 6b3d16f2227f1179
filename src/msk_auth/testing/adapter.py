"""What an adapter for another framework is held to: a world, an application, and a table of requests with their answers.

Write this application with your adapter, and a driver that sends it requests; then subclass :class:`AdapterContract`. A
guard of your framework stands where this says what a route demands; the answers are JSON.

::

    GET  /public          anybody
    GET  /me              authenticated
    GET  /tasks           tasks:read
    POST /tasks/run       tasks:run
    GET  /both            tasks:read and tasks:run, as two guards
    *    /admin/config    interactive, admin:config (GET and PATCH)
    POST /fresh           interactive, logged in within the last MAX_AGE
    GET  /missing         authenticated; raises TaskNotFound, a problem of the application's own
    GET  /busy            anybody; raises TooManyAttempts(30)
    GET  /boom            anybody; raises Surprise, which nobody expects
         /api/keys        the key routes

`/me`, `/tasks`, `/tasks/run`, `/both` and `/fresh` answer with `describe(principal)`, the others with any object. All
answer 200 when they answer.

For :class:`~msk_auth.testing.WebSocketContract` it has websockets as well, which accept once they have let somebody in:

::

    WS   /ws              authenticated; says describe(principal) as JSON, and closes
    WS   /ws/admin        interactive; closes
    WS   /ws/missing      authenticated; raises TaskNotFound before it accepts
    WS   /ws/talk         authenticated; answers every text with talk(text, principal)
    WS   /ws/watch        authenticated; awaits outstay(authenticator, principal) in a block of watch(principal)
    WS   /ws/again        authenticated; awaits revoke(authenticator, principal), and then verify_again

For :class:`~msk_auth.testing.StreamContract` it has answers that go on. An adapter that blocks takes `lines_blocking` and
`revoke_blocking`:

::

    GET  /follow          authenticated; streams watch(principal).stream(lines(authenticator, principal))
    GET  /again           authenticated; awaits revoke(authenticator, principal), and then verify_again
"""

from __future__ import annotations

from ._adapter_contract import CASES, AdapterContract, AdapterDriver, Reply
from ._adapter_contract_case import Case
from ._adapter_contract_world import (
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
from ._stream_contract import lines, lines_blocking, outstay, revoke, revoke_blocking
from ._websocket_contract import (
    POLICY_VIOLATION,
    Conversation,
    WebSocketDriver,
    talk,
)

__all__ = [
    "CASES",
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
    "Surprise",
    "TaskNotFound",
    "User",
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
