"""Watches on an event loop: a task makes rounds while there are watches. `_sync.watch` has the rules."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
)
from weakref import WeakSet

from msk_auth._failures import log_failure
from msk_auth._sync.watch import Watched
from msk_auth.clock import Clock
from msk_auth.core.authentication import Rules
from msk_auth.core.errors import Problem, StoreUnavailable
from msk_auth.core.model import ApiKey, ExternalIdentity, Owner, Principal, Session, UserT
from msk_auth.core.policy import Policy

# The functions below import asyncio, when an event loop runs: it takes as long to load as the rest of the library.
if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

LOOK_UPS_AT_ONCE: Final = 8
"""The number of concurrent look-ups of a round, which share a pool with requests. New watches add as many."""

Record: TypeAlias = tuple[str, Any]
"""A record to look up: its kind and its id."""


class AwaitedReads(Protocol):
    """The look-ups of a round, as in `AsyncLookUps`.

    Attributes:
        keys_at_once: The maximum number of keys in a call of :meth:`find_keys`.
    """

    keys_at_once: int

    def find_keys(self, key_ids: Sequence[str]) -> Awaitable[Sequence[ApiKey | None]]: ...
    def find_session(self, session_id: str, /) -> Awaitable[Session | None]: ...
    def find_owner(self, owner_id: str, /) -> Awaitable[Owner[Any] | None]: ...
    def find_external_owner(
        self, identity: ExternalIdentity, /
    ) -> Awaitable[Owner[Any] | None]: ...


class Round(Generic[UserT]):
    """One round.

    Args:
        rules: The authenticator's rules.
        reads: Makes the look-ups.
        watched: The watches to verify. Those whose turn is the longest ago come first, because a round may be too
            short for all.
        clock: The source of time.
    """

    def __init__(
        self,
        rules: Rules,
        reads: AwaitedReads,
        watched: Iterable[Watched[UserT]],
        clock: Clock,
    ) -> None:
        self._rules = rules
        self._reads = reads
        self._watched = sorted(
            (each for each in watched if each.refusal is None),
            # Of the watches of the same round, those that it did not verify come last: their look-ups
            # may hang again.
            key=lambda each: (each.turn_at, -each.verified_at),
        )
        self._clock = clock
        # Before the first read.
        self._began = clock.monotonic()
        self._read = _Snapshot()
        self._had_time: set[Record] = set()
        self._failed = False

    def look_ups(self) -> list[Sequence[Record]]:
        """The records that each look-up of this round reads, each record once.

        Many keys are read at once, so all of them come first: even a round that is too short for all owners finds every
        revoked key. The look-ups of one watch stay together otherwise.
        """
        at_once = self._reads.keys_at_once
        records = list(dict.fromkeys(each for one in self._watched for each in self._records(one)))
        if at_once == 1:
            return [[record] for record in records]
        keys = [record for record in records if record[0] == "key"]
        batches = [keys[n : n + at_once] for n in range(0, len(keys), at_once)]
        return [*batches, *([record] for record in records if record[0] != "key")]

    async def look_up(self, records: Sequence[Record]) -> None:
        """Make a look-up, and keep what it finds for :meth:`settle`."""
        kind, name = records[0]
        match kind:
            case "key":
                found = await self._reads.find_keys([key_id for _, key_id in records])
                by_id = {record.id: record for record in found if record is not None}
                self._read.found.update((each, by_id.get(each[1])) for each in records)
            case "session":
                self._read.found[kind, name] = await self._reads.find_session(name)
            case "identity":
                self._read.found[kind, name] = await self._reads.find_external_owner(name)
            case _:
                self._read.found[kind, name] = await self._reads.find_owner(name)

    def has_time(self, records: Sequence[Record]) -> None:
        """Note that a look-up begins early in this round: if it is not answered, the fault is its own."""
        self._had_time.update(records)

    def failed(self, error: Exception) -> None:
        """Record that a look-up failed: this round does not verify the watches that depend on it."""
        if not self._failed:
            # Once in a round: in an outage all look-ups fail for the same reason.
            log_failure(logging.WARNING, "could not verify open connections", error)
        self._failed = True

    def settle(self, interval: float) -> None:
        """End every watch whose access has ended.

        Args:
            interval: The seconds until the next round ends, at the latest.
        """
        now, monotonic = self._clock.now(), self._clock.monotonic()
        for each in self._watched:
            try:
                refusal = each.verdict(self._rules, self._read, now)
            except Exception as error:  # noqa: BLE001 - after any error this watch is not verified
                if not isinstance(error, _NotRead):
                    self.failed(error)
                elif error.record in self._had_time:
                    each.turn_at = self._began
                if not each.is_overdue(monotonic, interval):
                    continue
                refusal = StoreUnavailable()
            if refusal is None:
                each.turn_at = self._began
                each.note_verified(self._began)
            elif each.refusal is None:
                each.end(refusal)

    def _records(self, watched: Watched[UserT]) -> Iterator[Record]:
        principal = watched.principal
        if principal.key_id is not None:
            yield "key", principal.key_id
        if principal.session_id is not None and self._rules.checks_sessions:
            yield "session", principal.session_id
        if principal.identity is not None:
            yield "identity", principal.identity
        else:
            yield "owner", principal.owner.id


class _NotRead(Exception):
    """The look-up failed, took too long or did not begin.

    Args:
        record: The record to read.
    """

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.record = record


class _Snapshot:
    """The results of a round's look-ups, by kind and id."""

    def __init__(self) -> None:
        self.found: dict[Record, object] = {}

    def find_key(self, key_id: str, /) -> ApiKey | None:
        return cast("ApiKey | None", self._get("key", key_id))

    def find_session(self, session_id: str) -> Session | None:
        return cast("Session | None", self._get("session", session_id))

    def find_owner(self, owner_id: str) -> Owner[Any] | None:
        return cast("Owner[Any] | None", self._get("owner", owner_id))

    def find_external_owner(self, identity: ExternalIdentity) -> Owner[Any] | None:
        return cast("Owner[Any] | None", self._get("identity", identity))

    def _get(self, kind: str, name: Hashable) -> object:
        if (kind, name) not in self.found:
            raise _NotRead((kind, name))
        return self.found[kind, name]


class AsyncWatch(Watched[UserT]):
    """Verifies repeatedly that a principal still has access. Made by :meth:`AsyncAuthenticator.watch`.

    For a websocket, or other work in one coroutine. The watch verifies the principal before the block begins. When access
    ends, the block raises the problem within two seconds::

        async with authenticator.watch(principal):
            async for text in websocket.iter_text():
                ...

    For a streaming response, such as an event stream::

        watch = authenticator.watch(principal)
        return StreamingResponse(watch.stream(events()), media_type="text/event-stream")

    The watch cancels the block first, like `asyncio.timeout`, so the block must not contain a `yield`: use :meth:`stream`. Use
    each watch once. While the store cannot answer, neither the block nor the stream begins.

    Args:
        watches: The watches of the authenticator.
        principal: The admitted principal.
        policy: The policy that it must meet. None: it must keep its permissions.
        is_fresh: True if the principal was verified just now, so that the next round is soon enough.

    Attributes:
        refusal: The reason why access has ended; None before. It is the refusal that a request with the same
            credential would get, or :class:`~msk_auth.errors.StoreUnavailable` if the principal could not be verified for
            five seconds.
    """

    def __init__(
        self,
        watches: AsyncWatches[UserT],
        principal: Principal[UserT],
        policy: Policy | None,
        *,
        is_fresh: bool = False,
    ) -> None:
        super().__init__(principal, policy, watches.clock.monotonic())
        self._watches = watches
        self._is_fresh = is_fresh
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    async def __aenter__(self) -> AsyncWatch[UserT]:
        import asyncio

        self._begin()
        try:
            if not self._decided.done():
                await asyncio.wait([self._decided])
        except BaseException:
            self._rounds.remove(self)
            raise
        if self.refusal is not None:
            self._rounds.remove(self)
            raise self.refusal
        self._task = asyncio.current_task()
        self._cancelling = 0 if self._task is None else self._task.cancelling()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import asyncio

        task, self._task = self._task, None
        self._rounds.remove(self)
        if self.refusal is None or task is None:
            return
        # `asyncio.timeout` recognises its own cancellation in the same way.
        is_ours = task.uncancel() <= self._cancelling
        if is_ours and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise self.refusal from None

    async def stream(self, source: AsyncIterable[T]) -> AsyncGenerator[T]:
        """The items of `source` until the source or access ends; :attr:`refusal` has the reason.

        The first item is requested when the principal has been verified.

        `source` runs in its own task, which ends before this generator.
        """
        import asyncio

        self._begin()
        ended = self._ended
        hand_over = _HandOver[T]()
        pulling = asyncio.create_task(hand_over.pull(source))
        try:
            await asyncio.wait([self._decided])
            while not ended.done():
                arrived = hand_over.request()
                await asyncio.wait((arrived, pulling, ended), return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    return
                if not arrived.done():
                    # Raises the error of the source.
                    pulling.result()
                    return
                yield arrived.result()
        finally:
            self._rounds.remove(self)
            pulling.cancel()
            await asyncio.wait([pulling])

    async def wait(self) -> Problem:
        """Wait until access has ended, and return the reason. For code that closes its connection itself."""
        import asyncio

        self._begin()
        try:
            await asyncio.wait([self._ended])
        finally:
            self._rounds.remove(self)
        assert self.refusal is not None  # noqa: S101 - what has ended the wait
        return self.refusal

    def note_verified(self, at: float) -> None:
        """Called by the rounds, as long as access lasts."""
        super().note_verified(at)
        _set(self._decided)

    def end(self, refusal: Problem) -> None:
        """Called once by the rounds, when access has ended."""
        super().end(refusal)
        _set(self._decided)
        _set(self._ended)
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        import asyncio

        loop = asyncio.get_running_loop()
        # Done with the first verification or the end of access.
        self._decided: asyncio.Future[None] = loop.create_future()
        # Done with the end of access.
        self._ended: asyncio.Future[None] = loop.create_future()
        self.began_at: float = self._watches.clock.monotonic()
        if self._is_fresh:
            self.note_verified(self.began_at)
        self._rounds: _Rounds[UserT] = self._watches.of_this_loop()
        self._rounds.add(self)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _HandOver(Generic[T]):
    """Passes on the items of an asynchronous source one by one, on request.

    The source runs in one task from beginning to end, so that it may use objects that belong to a task.
    """

    def __init__(self) -> None:
        import asyncio

        self._requested = asyncio.Event()

    def request(self) -> asyncio.Future[T]:
        """A future of the next item."""
        import asyncio

        self._arrived: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._requested.set()
        return self._arrived

    async def pull(self, source: AsyncIterable[T]) -> None:
        """Pass on all items of the source, and close it."""
        try:
            await self._requested.wait()
            async for item in source:
                self._requested.clear()
                self._arrived.set_result(item)
                await self._requested.wait()
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(source, "aclose", None)
            if close is not None:
                await close()


class AsyncWatches(Generic[UserT]):
    """All watches of an authenticator, by event loop.

    Args:
        rules: The authenticator's rules.
        reads: Looks up keys, sessions and owners.
        clock: The source of time. The loop measures the wait for the next round, because a test's clock
            does not advance while a task waits.
        interval: The seconds between the beginnings of two rounds.
    """

    def __init__(self, rules: Rules, reads: AwaitedReads, clock: Clock, interval: float) -> None:
        self.clock = clock
        self._rules = rules
        self._reads = reads
        self._interval = interval
        # A thread runs one loop at a time.
        self._here = threading.local()

    async def close(self) -> None:
        """End the rounds of this event loop. Remaining watches end with `StoreUnavailable`."""
        await self.of_this_loop().close()

    def of_this_loop(self) -> _Rounds[UserT]:
        """The rounds of the running event loop."""
        import asyncio

        loop = asyncio.get_running_loop()
        rounds: _Rounds[UserT] | None = getattr(self._here, "rounds", None)
        if rounds is None or rounds.loop is not loop:
            rounds = _Rounds(loop, self._rules, self._reads, self.clock, self._interval)
            self._here.rounds = rounds
        return rounds


class _Rounds(Generic[UserT]):
    """The rounds of one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rules: Rules,
        reads: AwaitedReads,
        clock: Clock,
        interval: float,
    ) -> None:
        self.loop = loop
        # Weakly, so that the watch of a dropped generator is no longer verified.
        self.watched: WeakSet[AsyncWatch[UserT]] = WeakSet()
        self._rules = rules
        self._reads = reads
        self._clock = clock
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        # Watches that have not been in a round yet.
        self._new: WeakSet[AsyncWatch[UserT]] = WeakSet()
        self._task_of_new: asyncio.Task[None] | None = None
        # Cancelled look-ups that have not ended yet, because the loop references tasks weakly.
        self._cancelled: set[asyncio.Task[None]] = set()

    def add(self, watch: AsyncWatch[UserT]) -> None:
        """Verify a watch in each round; also at once, unless it was verified when it began."""
        self.watched.add(watch)
        if self._task is None or self._task.done():
            self._task = self._start(self._run())
            self._task.add_done_callback(self._end_remaining)
        if watch.verified_at >= watch.began_at:
            return
        self._new.add(watch)
        if self._task_of_new is None or self._task_of_new.done():
            self._task_of_new = self._start(self._verify_new())

    def remove(self, watch: AsyncWatch[UserT]) -> None:
        """Stop verifying a watch."""
        self.watched.discard(watch)
        self._new.discard(watch)

    async def close(self) -> None:
        """End the rounds. Remaining watches end with `StoreUnavailable`."""
        import asyncio

        tasks = [task for task in (self._task, self._task_of_new) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _start(self, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # In a new context: this task must not see the context variables of the first request.
        return self.loop.create_task(run, name="msk_auth watch", context=contextvars.Context())

    async def _run(self) -> None:
        import asyncio

        pause = self._interval
        while self.watched:
            await asyncio.sleep(pause)
            began = self.loop.time()
            await self._make_round(self.watched)
            pause = max(0.0, began + self._interval - self.loop.time())

    def _end_remaining(self, ended: asyncio.Task[None]) -> None:
        """End the watches of a task that was cancelled, perhaps before its first step: no task verifies them any more."""
        if ended is not self._task:
            return
        for watch in tuple(self.watched):
            if watch.refusal is None:
                watch.end(StoreUnavailable())

    async def _verify_new(self) -> None:
        """Verify new watches, together those that begin within a tenth of an interval.

        This runs beside the other rounds, which may take a whole interval.
        """
        import asyncio

        while self._new:
            new, self._new = self._new, WeakSet()
            await self._make_round(new)
            await asyncio.sleep(self._interval / 10)

    async def _make_round(self, watched: WeakSet[AsyncWatch[UserT]]) -> None:
        import asyncio

        it = Round(self._rules, self._reads, watched, self._clock)
        look_ups = it.look_ups()
        waiting = iter(look_ups)
        # A round ends before the next begins: its findings take effect within two intervals, however long a look-up takes.
        longest = 0.9 * self._interval
        middle = self.loop.time() + longest / 2

        async def work() -> None:
            for look_up in waiting:
                if self.loop.time() < middle:
                    it.has_time(look_up)
                try:
                    await it.look_up(look_up)
                except Exception as error:  # noqa: BLE001 - this round does not verify the watches that depend on it
                    it.failed(error)

        workers = {asyncio.create_task(work()) for _ in look_ups[:LOOK_UPS_AT_ONCE]}
        try:
            if workers:
                _, late = await asyncio.wait(workers, timeout=longest)
                if late:
                    it.failed(TimeoutError(f"not read within {longest:g} seconds"))
        finally:
            # Cancel a look-up that hangs, and do not wait for it: it may not end.
            for task in workers:
                if task.cancel():
                    self._cancelled.add(task)
                    task.add_done_callback(self._cancelled.discard)
        it.settle(self._interval)
