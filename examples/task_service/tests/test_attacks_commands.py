"""Attacks with commands: what the service holds open is not handed on to them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from task_service.handlers import supervisor


def test_a_command_inherits_only_its_three_streams() -> None:
    # uvloop, unlike asyncio's own loop, hands on what was opened to be inherited, such as a supervisor's socket.
    held, other_end = os.pipe()
    held_end, hold = os.pipe()
    pipe = str(Path(f"/proc/self/fd/{held}").readlink())
    try:
        ended = subprocess.run(
            [
                *(sys.executable, "-I", "-S", supervisor.__file__, tempfile.mkdtemp()),
                *("inf", "/bin/sh", "-c", "readlink /proc/$$/fd/*; echo end"),
            ],
            stdin=held_end,
            pass_fds=(held,),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        for descriptor in (held, other_end, held_end, hold):
            os.close(descriptor)
    assert ended.stdout.endswith("end\n"), ended.stderr
    assert pipe not in ended.stdout
