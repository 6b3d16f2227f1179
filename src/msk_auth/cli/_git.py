"""Reads every object of a git repository: all branches, stashes, and objects that no branch reaches any more.

Git only returns bytes here. It runs no filter, text conversion, hook or pager of the repository, and a partial clone fetches
nothing.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Final

from ._finder import CHUNK
from ._sources import Source
from ._terminal import CommandFailed

_QUIET: Final = {"GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
_SETTINGS: Final = (
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.quotePath=false",
    "-c",
    "log.showSignature=false",
    "-c",
    "log.showRoot=true",
)
_LOG: Final = ("--all", "--reflog", "-m", "--raw", "--no-abbrev", "--no-renames", "--no-ext-diff")


class GitHistory:
    """The objects of the repository that a folder is in; a context manager.

    Raises:
        CommandFailed: There is no git, or no repository.
    """

    def __init__(self, folder: str) -> None:
        self._command = ("git", "--no-pager", *_SETTINGS, "-C", folder or ".")
        # Inside a hook, git's variables describe another repository.
        inherited = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
        self._environment = inherited | _QUIET
        self.repository = self._run("rev-parse", "--absolute-git-dir").rstrip("\n")
        self._reader: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> GitHistory:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self._reader is not None:
            self._reader.kill()
            self._reader.communicate()

    def sources(self) -> Iterator[Source]:
        """Every blob, commit and tag."""
        listed = self._run(
            "cat-file",
            "--batch-all-objects",
            "--batch-check=%(objecttype) %(objectname) %(objectsize)",
        )
        for line in listed.splitlines():
            kind, object_id, size = line.split()
            if kind != "tree":
                yield self._source(kind, object_id, int(size))

    def origin(self, object_id: str) -> tuple[str, str] | None:
        """The first commit with a blob, and its path there; None if no commit has it."""
        log = self._run("log", *_LOG, "--format=commit %H", f"--find-object={object_id}")
        commit, origin = "", None
        for line in log.splitlines():
            if line.startswith("commit "):
                commit = line.removeprefix("commit ")
            elif line.startswith(":"):
                change, _, path = line.partition("\t")
                if change.split()[3] == object_id:
                    origin = commit, path  # the log goes back in time
        return origin

    def _source(self, kind: str, object_id: str, size: int) -> Source:
        return Source(f"{kind} {object_id[:12]}", size, lambda: self._read(object_id), object_id)

    def _read(self, object_id: str) -> Iterator[bytes]:
        reader = self._reader or self._start()
        to_git, from_git = _pipes(reader)
        to_git.write(f"{object_id}\n".encode("ascii"))
        to_git.flush()
        header = from_git.readline().split()
        if len(header) != 3:
            raise OSError("git cannot read it")
        remaining = int(header[2])
        while remaining:
            chunk = from_git.read(min(CHUNK, remaining))
            if not chunk:
                raise OSError("git stopped in the middle of it")
            remaining -= len(chunk)
            yield chunk
        from_git.read(1)  # a line feed ends each object

    def _start(self) -> subprocess.Popen[bytes]:
        self._reader = subprocess.Popen(  # noqa: S603 - an argument vector, without a shell
            [*self._command, "cat-file", "--batch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=self._environment,
        )
        return self._reader

    def _run(self, *arguments: str) -> str:
        try:
            result = subprocess.run(  # noqa: S603 - an argument vector, without a shell
                [*self._command, *arguments],
                capture_output=True,
                check=False,
                env=self._environment,
                encoding="utf-8",
                errors="surrogateescape",
            )
        except FileNotFoundError:
            raise CommandFailed("git is not installed.") from None
        if result.returncode != 0:
            lines = result.stderr.strip().splitlines() or ["git failed"]
            raise CommandFailed(lines[-1])
        return result.stdout


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    return process.stdin, process.stdout
