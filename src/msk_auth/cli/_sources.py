"""What a scan reads: files, folders, standard input, and a git repository's objects."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ._finder import CHUNK


@dataclass(frozen=True, slots=True)
class Source:
    """Something to be scanned.

    Attributes:
        name: Its path, or another name for people.
        size: In bytes; 0 if unknown.
        chunks: Reads it; raises OSError.
        object_id: Git's object id; None outside git.
    """

    name: str
    size: int
    chunks: Callable[[], Iterator[bytes]]
    object_id: str | None = None


def files(paths: Iterable[str], unreadable: Callable[[str, str], None]) -> Iterator[Source]:
    """Every regular file in these files and folders.

    Symbolic links in `paths` are followed; those inside folders are not, since their targets are found anyway or lie outside.
    Git's own folders are skipped; `-` is standard input.

    Args:
        paths: The files and folders.
        unreadable: Called with the path and the reason of each failure.
    """
    for path in paths:
        if path == "-":
            yield Source("standard input", 0, lambda: _read(sys.stdin.buffer))
            continue
        try:
            status = os.stat(path)  # noqa: PTH116 - a path that is no text has no Path either
        except OSError as error:
            unreadable(path, why(error))
            continue
        except ValueError:
            # A NUL or a lone surrogate. The interpreter's message differs between versions.
            unreadable(path, "not a valid path")
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path, unreadable)
        else:
            yield _file(path, status.st_size)


def _walk(top: str, unreadable: Callable[[str, str], None]) -> Iterator[Source]:
    pending = [top]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            unreadable(folder, why(error))
            continue
        folders: list[str] = []
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != ".git":
                        folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    # Devices, sockets and pipes are skipped: reading them may never end.
                    yield _file(entry.path, entry.stat(follow_symlinks=False).st_size)
            except OSError as error:
                unreadable(entry.path, why(error))
        pending.extend(reversed(folders))


def _file(path: str, size: int) -> Source:
    def chunks() -> Iterator[bytes]:
        with Path(path).open("rb", buffering=0) as file:
            yield from _read(file)

    return Source(os.path.normpath(path), size, chunks)


def _read(file: BinaryIO) -> Iterator[bytes]:
    # Not `mmap`: if the file is truncated meanwhile, the process would crash.
    while chunk := file.read(CHUNK):
        yield chunk


def why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
