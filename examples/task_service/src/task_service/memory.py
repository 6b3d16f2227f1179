"""How this process allocates memory, and whether other processes may read it."""

from __future__ import annotations

import ctypes
import gc
import platform
import sys
from typing import Final

# From glibc's malloc.h.
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
# From linux/prctl.h.
_PR_SET_DUMPABLE: Final = 4


def return_large_blocks() -> None:
    """Make glibc return large blocks to the system as soon as they are freed. Does nothing elsewhere.

    Each password hash takes 19 MiB for a moment. glibc learns from the first one that blocks of that size are
    common, and keeps one for every thread from then on; setting the threshold makes it stop learning. Few arenas,
    because most of the service's threads (one for each connection to SQLite) allocate little.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_THRESHOLD, 1024 * 1024)
    libc.mallopt(_M_ARENA_MAX, 2)


def hide_memory() -> None:
    """Keep other processes of the same user from this one's memory, environment and open files. Linux only.

    `/proc/PID/environ`, `/proc/PID/mem` and debuggers are root's from here on, and a crash writes no core dump: the
    environment has the passwords of databases, and memory the secrets of the data folder. What this process executes
    is not hidden.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def keep_what_exists() -> None:
    """Take everything that exists from the garbage collector, for a process that has started and will serve until it ends.

    Modules, routes and statements are two hundred thousand objects. While the collector looks at all of them, for a tenth of a
    second, no request is answered.
    """
    gc.collect()
    gc.freeze()
