"""`msk-auth scan`: finds keys in files and in git's history."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, TextIO

from msk_auth import Clock, SystemClock

from ._finder import Finder, Found
from ._git import GitHistory
from ._reports import FORMATS, Finding, ScanResult
from ._sources import Source, files, why
from ._terminal import Commands, shown, write_error, write_line

_WIDTH: Final = 30
_REDRAW_SECONDS: Final = 0.1


def add_scan(commands: Commands) -> None:
    """Add the command."""
    scan = commands.add(
        "scan",
        summary="find API keys in files and in git's history",
        examples=(
            "  msk-auth scan .\n"
            "  msk-auth scan --git-history .\n"
            "  msk-auth scan --format sarif src > keys.sarif\n"
            "  kubectl logs web | msk-auth scan -\n"
            "  msk-auth scan --prefix acme --ignore AAAAAAAAAAAA docs\n\n"
            "Exit code 1 means that a key was found, 2 that something could not be read."
        ),
    )
    scan.add_argument("paths", nargs="+", metavar="PATH", help="files, folders, or - for input")
    scan.add_argument(
        "--git-history",
        action="store_true",
        help="also every object of the git repositories that the paths are in, reachable or not",
    )
    scan.add_argument(
        "--prefix",
        action="append",
        metavar="PREFIX",
        help="what keys begin with; may be repeated (msk)",
    )
    scan.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="KEY_ID",
        help="the id of a key that may be found, such as an example; may be repeated",
    )
    scan.add_argument("--format", choices=list(FORMATS), default="text")
    scan.set_defaults(run=_run)


def _run(given: argparse.Namespace) -> int:
    finder = Finder(given.prefix or ["msk"])
    result = ScanResult()
    ignored: Collection[str] = frozenset(given.ignore)
    _scan(files(given.paths, _recorder(result)), finder, ignored, result, _location)
    if given.git_history:
        for history in _histories(given.paths):
            with history:
                _scan(history.sources(), finder, ignored, result, _origin(history))
    output = FORMATS[given.format](result)
    if output:
        write_line(output)
    for path, reason in result.errors:
        write_error(f"{shown(path)}: {reason}")
    if result.findings:
        keys = len({each.mask for each in result.findings})
        write_error(
            f"{keys} key(s) in {len(result.findings)} place(s). Revoke them, then take them out."
        )
        return 1
    return 2 if result.errors else 0


def _recorder(result: ScanResult) -> Callable[[str, str], None]:
    def record(path: str, reason: str) -> None:
        result.errors.append((path, reason))

    return record


def _scan(
    sources: Iterable[Source],
    finder: Finder,
    ignored: Collection[str],
    result: ScanResult,
    locate: Callable[[Source, Found], Finding],
) -> None:
    if sys.stderr.isatty():
        # Only the bar needs the total size; without it reading begins at once.
        sources = list(sources)
        progress = Progress(sum(source.size for source in sources), sys.stderr, SystemClock())
    else:
        progress = None
    for source in sources:
        try:
            result.files += 1
            for found in finder.find(_counted(source, result, progress)):
                if found.key_id not in ignored:
                    result.findings.append(locate(source, found))
        except OSError as error:
            result.errors.append((source.name, why(error)))
    if progress is not None:
        progress.clear()


def _counted(source: Source, result: ScanResult, progress: Progress | None) -> Iterator[bytes]:
    for chunk in source.chunks():
        result.bytes += len(chunk)
        if progress is not None:
            progress.add(len(chunk))
        yield chunk


def _location(source: Source, found: Found) -> Finding:
    return Finding(source.name, found.line, found.column, found.key_id, found.mask)


def _histories(paths: Iterable[str]) -> Iterator[GitHistory]:
    seen: set[str] = set()
    for path in paths:
        if path != "-":
            history = GitHistory(_folder(path))
            if history.repository not in seen:
                seen.add(history.repository)
                yield history


def _folder(path: str) -> str:
    return path if Path(path).is_dir() else str(Path(path).parent)


def _origin(history: GitHistory) -> Callable[[Source, Found], Finding]:
    origin = cache(history.origin)

    def locate(source: Source, found: Found) -> Finding:
        object_id = source.object_id or ""
        commit, path = origin(object_id) or (None, source.name)
        return Finding(path, found.line, found.column, found.key_id, found.mask, commit, object_id)

    return locate


class Progress:
    """A bar on a terminal, drawn at most ten times a second.

    Args:
        total: How many bytes there are.
        stream: The terminal.
        clock: Limits how often the bar is drawn.
    """

    def __init__(self, total: int, stream: TextIO, clock: Clock) -> None:
        self._total = total
        self._stream = stream
        self._clock = clock
        self._began = self._drawn = clock.monotonic()
        self._done = 0

    def add(self, count: int) -> None:
        """Count bytes that were read."""
        self._done += count
        now = self._clock.monotonic()
        if now - self._drawn < _REDRAW_SECONDS:
            return
        self._drawn = now
        # Files grow while they are read, and standard input has no size.
        part = min(1.0, self._done / self._total) if self._total else 1.0
        speed = self._done / 1e6 / (now - self._began)
        bar = ("#" * int(part * _WIDTH)).ljust(_WIDTH, ".")
        self._stream.write(f"\r[{bar}] {part:4.0%}  {speed:.0f} MB/s ")
        self._stream.flush()

    def clear(self) -> None:
        """Clear the line."""
        self._stream.write("\r\x1b[K")
        self._stream.flush()
