"""Keeps the secrets of a run out of its log: servers and programs often repeat their input."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from task_service.handlers import LogSink, Stream

MIN_LENGTH: Final = 8
"""Shorter words are not masked, since they would mask half of the output."""
_SHOWN: Final = "***"


class MaskedOutput:
    """A sink that replaces the words of secrets. An incomplete word is held back.

    Args:
        sink: Gets the output.
        secrets: Texts whose words of :data:`MIN_LENGTH` characters or more are replaced, such as the second of `Bearer abc…`.
    """

    def __init__(self, sink: LogSink, secrets: Iterable[str]) -> None:
        words = {word for text in secrets for word in text.split() if len(word) >= MIN_LENGTH}
        # The longest first, since a word may be a part of another.
        ordered = sorted(words, key=len, reverse=True)
        self._sink = sink
        self._words = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._most_held = len(ordered[0]) - 1 if ordered else 0
        self._held: dict[Stream, str] = {}

    @property
    def full(self) -> bool:
        """See :attr:`LogSink.full`."""
        return self._sink.full

    def write(self, stream: Stream, text: str) -> None:
        """See :meth:`LogSink.write`."""
        if self._words is None:
            self._sink.write(stream, text)
            return
        text = self.mask(self._held.pop(stream, "") + text)
        # The end of the text, if it has no space and is short enough to be the beginning of a secret.
        start = max(len(text) - self._most_held, _start_of_last_word(text))
        if start < len(text):
            self._held[stream] = text[start:]
        if start:
            self._sink.write(stream, text[:start])

    def flush(self) -> None:
        """Write the text that was held back."""
        for stream, text in self._held.items():
            self._sink.write(stream, text)
        self._held.clear()

    def mask(self, text: str) -> str:
        """The text without the words of the secrets."""
        return text if self._words is None else self._words.sub(_SHOWN, text)


def _start_of_last_word(text: str) -> int:
    """The position of the last word of a text; the text's end if it ends with a space."""
    if not text or text[-1].isspace():
        return len(text)
    return len(text) - len(text.rsplit(maxsplit=1)[-1])
