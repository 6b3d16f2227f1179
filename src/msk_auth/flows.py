"""The two drivers of flows, :func:`run_blocking` and :func:`run_awaiting`, for what the adapters have in common.

A flow is a generator that yields steps: functions of what is given to the driver. A driver decides nothing: it calls a step, sends the
answer into the flow, and throws into it what the step raised.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar, cast

T = TypeVar("T")
AnyFlow: TypeAlias = Generator[Callable[[Any], Any], Any, T]
"""A flow over ports of any kind."""


def run_blocking(flow: AnyFlow[T], ports: object) -> T:
    """Run a flow whose steps return their answers.

    Args:
        flow: Not started yet.
        ports: What each step is called with.

    Returns:
        What the flow returns.
    """
    try:
        step = flow.send(None)
        while True:
            # A stray StopIteration of a store must not look like the end of the flow.
            try:
                answer = step(ports)
            except BaseException as error:  # noqa: BLE001 - the flow raises it again
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return cast("T", stop.value)


async def run_awaiting(flow: AnyFlow[T], ports: object) -> T:
    """As :func:`run_blocking`, for steps that return awaitables of their answers."""
    try:
        step = flow.send(None)
        while True:
            try:
                answer = await step(ports)
            except BaseException as error:  # noqa: BLE001 - the flow raises it again
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return cast("T", stop.value)
