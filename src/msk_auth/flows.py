"""The two drivers of flows, :func:`run_blocking` and :func:`run_awaiting`.

A driver decides nothing: it calls a step, sends the answer into the flow, and throws into it what the step raised. What
a flow of the core does not handle becomes :class:`~msk_auth.StoreUnavailable`, unless it is a
:class:`~msk_auth.Problem` already.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar, cast

from ._failures import unavailable_because
from .core.errors import Problem

T = TypeVar("T")
AnyFlow: TypeAlias = Generator[Callable[[Any], Any], Any, T]
"""A flow over ports of any kind."""


def _as_it_is(flow: AnyFlow[Any], error: BaseException) -> Callable[[Any], Any]:
    return flow.throw(error)


def run_blocking(
    flow: AnyFlow[T], ports: object, throw: Callable[[AnyFlow[Any], BaseException], Any] = _as_it_is
) -> T:
    """Run a flow whose steps return their answers.

    Args:
        flow: Not started yet.
        ports: What each step is called with.
        throw: Throws into the flow what a step raised; it returns the next step, and may translate what the flow lets
            through.

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
                step = throw(flow, error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return cast("T", stop.value)


async def run_awaiting(
    flow: AnyFlow[T], ports: object, throw: Callable[[AnyFlow[Any], BaseException], Any] = _as_it_is
) -> T:
    """As :func:`run_blocking`, for steps that return awaitables of their answers."""
    try:
        step = flow.send(None)
        while True:
            try:
                answer = await step(ports)
            except BaseException as error:  # noqa: BLE001 - the flow raises it again
                step = throw(flow, error)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        return cast("T", stop.value)


def fail_closed(flow: AnyFlow[Any], error: BaseException) -> Callable[[Any], Any]:
    """Throw it; what the flow does not handle is a refusal: fail closed."""
    try:
        return flow.throw(error)
    except (StopIteration, Problem):
        raise
    except Exception as unhandled:
        raise unavailable_because(unhandled) from unhandled
