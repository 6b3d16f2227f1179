"""Docstrings speak to readers of the code; here they learn to speak Markdown.

The roles of reStructuredText (``:class:`~msk_auth.errors.Problem` ``) become links where the site has the
name, and `::` before an indented block goes, since the indentation is enough. Methods whose docstring refers to a protocol
(``See :class:`~msk_auth.stores.KeyStore` ``) are left out: the protocol describes them, and the class says which it has.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

import griffe

# mkdocstrings loads this file by its path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.tools import versions

_ROLE: Final = re.compile(r":(?:class|meth|func|mod|attr|data|exc):`(~?)([\w.]+)`")
# Alone on its line it stands for nothing; behind a word for the colon that it shows.
_LITERAL: Final = re.compile(r"(?:^|(?<=\n))[ \t]*::[ \t]*\n|[ \t]+::(?=[ \t]*\n[ \t]*\n)")
_COLONS: Final = re.compile(r"(?<=\w)::(?=[ \t]*\n[ \t]*\n)")


class Roles(griffe.Extension):
    """Rewrites the docstrings of a package when it has been loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite them all."""
        _rewrite(pkg)


def _rewrite(item: griffe.Object) -> None:
    for name, member in list(item.members.items()):
        if isinstance(member, griffe.Function) and is_reference(member):
            del item.members[name]
    if item.docstring is not None:
        item.docstring.value = to_markdown(item.docstring.value, item)
    for member in item.members.values():
        if isinstance(member, griffe.Object):
            _rewrite(member)


def is_reference(item: griffe.Function) -> bool:
    """True if a method is described by the protocol that its docstring refers to."""
    return item.docstring is not None and item.docstring.value.startswith("See :")


def to_markdown(text: str, scope: griffe.Object) -> str:
    """A docstring as Markdown.

    Args:
        text: As it was written.
        scope: What it documents; names are looked for from there outwards.
    """
    linked = _ROLE.sub(lambda match: _link(match[1], match[2], scope), text)
    return versions.shown(_COLONS.sub(":", _LITERAL.sub("", linked)))


def _link(short: str, target: str, scope: griffe.Object) -> str:
    shown = target.rpartition(".")[2] if short else target
    # Optional: a private name has no place to go to, and stays what it is.
    return f'<autoref optional identifier="{_path(target, scope)}"><code>{shown}</code></autoref>'


def _path(target: str, scope: griffe.Object) -> str:
    if target.startswith("msk_auth."):
        return target
    first, dot, rest = target.partition(".")
    around: griffe.Object | None = scope
    while around is not None:
        member = around.members.get(first)
        if member is not None:
            path = member.target_path if isinstance(member, griffe.Alias) else member.path
            return f"{path}{dot}{rest}"
        around = around.parent  # type: ignore[assignment]
    return target
