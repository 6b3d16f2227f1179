"""The thread that keeps the deadlines of a blocking store: it starts when it can, and holds up no exit (guarantee G5)."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from msk_auth.stores.sqlalchemy._servers import CURRENT
from msk_auth.stores.sqlalchemy._sync.running import Uses


def refuse_to_start(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_could_not_start_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = Uses()
    with monkeypatch.context() as out_of_threads:
        out_of_threads.setattr(threading.Thread, "start", refuse_to_start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            uses.within(1.0, lambda: "read")
    assert CURRENT.get() is None
    client, server = socket.socketpair()
    # So that the test ends where the deadline does not.
    client.settimeout(60.0)

    def read() -> bytes:
        use = CURRENT.get()
        assert use is not None
        with use.of(client):
            answer = client.recv(1)
        if not answer:
            raise ConnectionError("the connection was shut down")
        return answer

    with client, server, pytest.raises(TimeoutError, match="did not answer in time"):
        uses.within(0.1, read)


ENDS = """
import atexit
import threading
from msk_auth.stores.sqlalchemy._sync.running import Uses

Uses().within(1.0, lambda: None)
waits = threading.Event()


def never_end():
    waits.set()
    threading.Event().wait()


def refuse_to_start(_):
    # As Python 3.12 does.
    raise RuntimeError("can't create new thread at interpreter shutdown")


def flush():
    threading.Thread.start = refuse_to_start
    print(Uses().within(1.0, lambda: "written"))


threading.Thread(target=Uses().within, args=(0.1, never_end), daemon=True).start()
waits.wait()
atexit.register(flush)
"""


def test_a_process_ends_beside_a_read_that_never_does_and_writes_at_exit_without_a_thread() -> None:
    # As where a server's threads are daemons and the driver has no socket to shut down, such as PyMySQL's.
    ended = subprocess.run([sys.executable, "-c", ENDS], check=True, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("written\n", "")
