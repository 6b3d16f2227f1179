"""Executed in a network namespace of its own: what `http_request` gets from a machine with public addresses.

Prints one JSON object: from what was tried to whether the server on this machine was reached.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_network

from msk_auth import SystemClock
from task_service.handlers import HandlerEnvironment, RunContext, Stream
from task_service.handlers.http_request import HttpRequest, HttpRequestParams

PUBLIC = "8.8.4.4"
SECOND = "8.8.4.5"
PUBLIC_6 = "2606:4700:4700::64"
LOOPBACK = ip_network("127.0.0.1/32")


class NoLog:
    full = False

    def write(self, stream: Stream, text: str) -> None:
        pass


async def no_commands() -> list[str]:
    return []


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    location = f"Location: http://{PUBLIC}:8000/\r\n" if head.startswith("GET /redirect") else ""
    status = "302 Found" if location else "200 OK"
    answer = f"HTTP/1.1 {status}\r\n{location}Content-Length: 0\r\nConnection: close\r\n\r\n"
    writer.write(answer.encode())
    writer.close()


async def is_reached(url: str, *allowed: str) -> bool:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return [PUBLIC]

    networks = [LOOPBACK, *map(ip_network, allowed)]
    handler = HttpRequest(HandlerEnvironment(no_commands, networks))
    handler.policy = replace(handler.policy, resolve=resolve)
    context = RunContext("run_1", 1, SystemClock(), NoLog())
    result = await asyncio.wait_for(handler.run(HttpRequestParams(url=url), context), 60)
    return result.exit_code == 0


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


async def main() -> None:
    ip("link", "set", "lo", "up")
    servers = [await asyncio.start_server(serve, host, 8000) for host in ("0.0.0.0", "::")]
    reached = {"loopback, opened": await is_reached("http://127.0.0.1:8000/")}
    # Added now, while the handler's process runs.
    ip("address", "add", f"{PUBLIC}/24", "dev", "lo")
    ip("address", "add", f"{SECOND}/24", "dev", "lo")
    ip("address", "add", f"{PUBLIC_6}/64", "dev", "lo", "nodad")
    reached |= {
        "address": await is_reached(f"http://{PUBLIC}:8000/"),
        "secondary address": await is_reached(f"http://{SECOND}:8000/"),
        "IPv6": await is_reached(f"http://[{PUBLIC_6}]:8000/"),
        "name": await is_reached("http://name.example:8000/"),
        "redirect": await is_reached("http://127.0.0.1:8000/redirect"),
        "opened": await is_reached(f"http://{PUBLIC}:8000/", PUBLIC),
    }
    print(json.dumps(reached))
    for server in servers:
        server.close()


if __name__ == "__main__":
    asyncio.run(main())
