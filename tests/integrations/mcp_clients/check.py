"""The gate and two programs from npm: the inspector's command line, and MCP's conformance tests.

Started by `make test-clients`, which installs both. Each is used with a server of each SDK.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.contract.adapter import PEOPLE, START, World, make_world
from tests.integrations.mcp_servers import SDKS, make_server, protect, served

from msk_auth import AsyncAuthenticator, Owner, local_principal
from msk_auth.integrations.mcp import McpAuth

INSPECTOR = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
CONFORMANCE = "node_modules/@modelcontextprotocol/conformance/dist/index.js"

# Those that need no tool, resource or prompt that is made for them.
SCENARIOS = [
    "server-initialize",
    "ping",
    "tools-list",
    "resources-list",
    "prompts-list",
    "server-sse-multiple-streams",
]

Output = tuple[int, str]
"""The exit status of a program, and what it printed."""


class Programs:
    """Runs the two.

    Args:
        node: The interpreter of JavaScript.
        folder: Has `node_modules`.
    """

    def __init__(self, node: Path, folder: Path) -> None:
        self._node = node
        self._folder = folder

    async def inspect(self, url: str, header: str | None, method: str, *more: str) -> Output:
        """What the inspector shows of one method."""
        given = [] if header is None else ["--header", header]
        options = ["--transport", "http", "--stored-auth-only", "--method", method, *more, *given]
        return await self._run(INSPECTOR, "--cli", url, *options)

    async def conform(self, url: str, scenario: str) -> Output:
        """What a conformance test finds."""
        return await self._run(CONFORMANCE, "server", "--url", url, "--scenario", scenario)

    async def _run(self, *arguments: str) -> Output:
        program = await asyncio.create_subprocess_exec(
            str(self._node),
            *arguments,
            cwd=self._folder,
            env={**os.environ, "HOME": str(self._folder), "NO_COLOR": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await program.communicate())[0].decode()
        assert program.returncode is not None
        return program.returncode, output


def protected(sdk: str, world: World, people: dict[str, Owner[Any]]) -> Any:
    """The server of the tests behind the gate."""

    async def find_owner(owner_id: str) -> Owner[Any] | None:
        return people.get(owner_id)

    authenticator = AsyncAuthenticator(world.store, find_owner=find_owner, clock=world.clock)
    auth = McpAuth(authenticator, resource="http://127.0.0.1:8000/mcp")
    return protect(make_server(sdk, "sessions", auth, asyncio.Event()), auth)


async def check_inspector(programs: Programs, sdk: str) -> None:
    """The seven cases."""
    world, people = make_world(), dict(PEOPLE)
    key = f"Authorization: Bearer {world.names['key']}"
    revoked = f"Authorization: Bearer {world.names['key_revoked']}"
    async with served(protected(sdk, world, people)) as url:

        async def refuses(code: str, header: str | None, method: str, *more: str) -> None:
            status, output = await programs.inspect(url, header, method, *more)
            assert status != 0, output
            assert code in output, (code, output)

        status, output = await programs.inspect(url, key, "tools/list")
        assert status == 0, output
        assert [tool["name"] for tool in json.loads(output)["tools"]] == ["whoami", "run", "wait"]
        call = ("tools/call", "--tool-name")
        status, output = await programs.inspect(url, key, *call, "whoami")
        assert (status, json.loads(output)["content"][0]["text"]) == (0, "alice"), output
        # It looks tools up in the listing, but not prompts.
        await refuses("tool_not_found", key, *call, "reset")
        prompt = ("prompts/get", "--prompt-name")
        await refuses("API keys cannot be used", key, *prompt, "reset")
        for header, code in [
            (None, "credentials_missing"),
            ("Authorization: Bearer msk_1", "key_malformed"),
            (revoked, "key_revoked"),
            (f"X-API-Key: {world.names['key']}", "credentials_missing"),
        ]:
            await refuses(code, header, "tools/list")
        people["alice"] = replace(PEOPLE["alice"], permissions=frozenset({"tasks:read"}))
        await refuses('required \\"tasks:run\\"', key, *prompt, "plan")
        world.store.broken = OSError("down")
        await refuses("store_unavailable", key, "tools/list")
        world.store.broken = None
        alice = local_principal(PEOPLE["alice"], at=START, interactive=True)
        await world.authenticator.revoke_key(alice, world.names["key_id"])
        await refuses("key_revoked", key, "tools/list")


async def check_conformance(programs: Programs, sdk: str) -> None:
    """The scenarios pass through the gate. Their client sends no key, so it is added on the way."""
    world = make_world()
    gate = protected(sdk, world, dict(PEOPLE))

    async def with_key(scope: Any, receive: Any, send: Any) -> None:
        headers = [*scope.get("headers", ()), *world.bearer("key")]
        await gate({**scope, "headers": headers}, receive, send)

    async with served(with_key) as url:
        for scenario in SCENARIOS:
            status, output = await programs.conform(url, scenario)
            assert status == 0, output
            assert "0 failed" in output, output


async def main(node: Path, folder: Path) -> None:
    """Check both programs with both SDKs.

    Args:
        node: The interpreter of JavaScript.
        folder: Has `node_modules`.
    """
    # The SDKs log each request.
    logging.disable(logging.WARNING)
    programs = Programs(node, folder)
    for sdk in SDKS:
        await check_inspector(programs, sdk)
        await check_conformance(programs, sdk)
        print(f"{sdk}: seven cases with the inspector, {len(SCENARIOS)} conformance scenarios")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
