"""Orders to processes: see a disk that does not take what is written, or a clock that was moved."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("shim.c")
_FORMAT = "qq"


class Shim:
    """Built for one nursery, whose processes all obey it.

    Args:
        folder: Where it is built.

    Attributes:
        environment: With which the nursery is started.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no C compiler: apt-get install gcc libc6-dev")
        folder.mkdir()
        library, orders = folder / "shim.so", folder / "orders"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, _SOURCE],
            check=True,
            capture_output=True,
        )
        orders.write_bytes(bytes(struct.calcsize(_FORMAT)))
        self._file = orders
        self.environment = {"LD_PRELOAD": str(library), "FAULTS_ORDERS": str(orders)}

    def order(self, *, clock_shift: int = 0, fsync_fails: bool = False) -> None:
        """From now on the time of day is so many seconds off, and `fsync` fails or not."""
        with (
            self._file.open("r+b") as file,
            mmap.mmap(file.fileno(), struct.calcsize(_FORMAT)) as shared,
        ):
            struct.pack_into(_FORMAT, shared, 0, clock_shift, fsync_fails)
