"""The lines by which a command tells how far it has come.

A line of the standard output that reads `::progress 40` or `::progress 40 Copying the files` is not output but a
report: 40 percent, with or without decimals, and a few words. It is shown as a bar and left out of the log. A line that
only looks alike stays what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_MARK: Final = "::progress "
_LINE: Final = re.compile(
    r"^::progress (?P<percent>[0-9]{1,3}(?:\.[0-9]{1,6})?)%?(?: (?P<text>[^\n]*))?(?:\n|\Z)",
    re.MULTILINE,
)
# A longer line is output, however it begins: it must not be held back without end.
_MAX_LINE: Final = 1000


class ProgressLines:
    """Takes the reports out of an output that comes in pieces.

    Args:
        report: Given a fraction from 0 to 1 and the text, which may be empty.
    """

    def __init__(self, report: Callable[[float, str | None], None]) -> None:
        self._report = report
        self._held = ""
        self._at_line_start = True

    def feed(self, text: str) -> str:
        """Take a piece of output and give back what belongs in the log.

        The beginning of a line that may become a report is held back until the rest of it has come.
        """
        text = self._held + text
        self._held = ""
        begun = ""
        if not self._at_line_start:
            begun, newline, text = text.partition("\n")
            begun += newline
            if not newline:
                return begun
        cut = text.rfind("\n") + 1
        lines, tail = text[:cut], text[cut:]
        if _may_become_a_report(tail):
            self._held, tail = tail, ""
        self._at_line_start = not tail
        return begun + _LINE.sub(self._take, lines) + tail

    def rest(self) -> str:
        """What was held back, once nothing more comes."""
        held, self._held = self._held, ""
        return _LINE.sub(self._take, held)

    def _take(self, line: re.Match[str]) -> str:
        fraction = float(line["percent"]) / 100
        if fraction > 1:
            return line[0]
        self._report(fraction, line["text"])
        return ""


def _may_become_a_report(tail: str) -> bool:
    return tail != "" and len(tail) <= _MAX_LINE and _MARK.startswith(tail[: len(_MARK)])
