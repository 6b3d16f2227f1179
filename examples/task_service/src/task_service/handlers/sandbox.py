"""Denies commands the service's files and processes, although both belong to the same user.

Landlock (Linux 5.13) lets a process without privileges drop rights for itself and all its descendants. A command drops,
before it begins:

- every access to the hidden paths (the data folder with its secrets, the SQLite database). Landlock grants and never
  denies, so the rules grant everything beside them on the way down from the root. The folders *above* them can be
  traversed, but neither listed nor changed: renaming one of them would uncover its content;
- reading processes outside the sandbox: their environment, memory, open files and working folder in `/proc`;
- signals to them, and their abstract sockets (Linux 6.12);
- gaining privileges by executing a file: `sudo`, `ping` and other set-user-id programs (`no_new_privs`).

It does not deny a command the network, sockets in the file system, changing the mode of files that it may not open, and,
before Linux 6.2, truncating them. Programs that do such things on request do not belong on the list.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

# linux/landlock.h. The system calls have these numbers on every architecture that CPython supports.
_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_GET_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1
_SCOPE_ABSTRACT_UNIX_SOCKET: Final = 1 << 0
_SCOPE_SIGNAL: Final = 1 << 1

# EXECUTE, WRITE_FILE, READ_FILE: the rights that exist on a file; and all rights of the first version.
_FILE_1: Final = 0b111
_ALL_1: Final = (1 << 13) - 1
_REFER_2: Final = 1 << 13
_TRUNCATE_3: Final = 1 << 14


@cache
def landlock_version() -> int:
    """The version of Landlock in this kernel; 0 if it has none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(_syscall(_CREATE_RULESET, None, 0, _GET_VERSION), 0)


@dataclass(frozen=True, slots=True)
class CommandSandbox:
    """The sandbox for commands.

    Attributes:
        hidden_paths: Files and folders that commands have no access to; absolute, without links. They need not exist.
        version: The version of Landlock to use; 0 if there is none.
        required: False if the deployer accepts that commands may do whatever the service's user may. They are not
            confined then, even with Landlock.
    """

    hidden_paths: Sequence[Path] = ()
    version: int = 0
    required: bool = True

    @classmethod
    def hiding(cls, paths: Iterable[Path], *, required: bool = True) -> CommandSandbox:
        """The sandbox that this machine's kernel supports.

        Args:
            paths: The paths to hide.
            required: See :class:`CommandSandbox`.
        """
        return cls(tuple(path.resolve() for path in paths), landlock_version(), required)

    @property
    def is_missing(self) -> bool:
        """True if commands must be confined and cannot be."""
        return self.required and self.version == 0

    def rules(self, folder: Path) -> int | None:
        """A file descriptor of the rules for one command, which the caller closes; None if it is not confined.

        Args:
            folder: The command's own folder, which exists. All rights are granted there.

        Raises:
            OSError: The kernel refuses the rules.
        """
        if not self.required:
            return None
        access = _ALL_1
        if self.version >= 2:
            access |= _REFER_2
        if self.version >= 3:
            access |= _TRUNCATE_3
        scoped = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if self.version >= 6 else 0
        # struct landlock_ruleset_attr: file system, network, scopes.
        attributes = struct.pack("=QQQ", access, 0, scoped)
        rules = _checked(_syscall(_CREATE_RULESET, attributes, len(attributes), 0))
        try:
            for path in (*_beside(Path("/"), self.hidden_paths), folder):
                _grant(rules, path, access)
        except BaseException:
            os.close(rules)
            raise
        return rules


def _beside(folder: Path, hidden: Sequence[Path]) -> Iterator[Path]:
    """The largest parts of `folder` that hold nothing hidden."""
    within = [path for path in hidden if path.is_relative_to(folder)]
    if not within:
        yield folder
    elif folder not in within:
        try:
            entries = [Path(entry.path) for entry in os.scandir(folder) if not entry.is_symlink()]
        except OSError:  # it cannot be listed, or was deleted: nothing in it is granted
            return
        for entry in entries:
            yield from _beside(entry, within)


def _grant(rules: int, path: Path, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # it was deleted since, or the service may not reach it either
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= _FILE_1 | _TRUNCATE_3
        # struct landlock_path_beneath_attr
        rule = struct.pack("=Qi", access, descriptor)
        _checked(_syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0))
    finally:
        os.close(descriptor)


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    # A variadic function: an argument that is not a pointer takes a whole register.
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return int(_libc().syscall(ctypes.c_long(number), *words))


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return result
