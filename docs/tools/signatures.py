"""Signatures show values: a constant that the reference does not have is replaced by what it stands for.

`key_limits=NO_LIMITS` tells a reader nothing; `key_limits=KeyLimits()` does. A public constant is shown with its value where
that is a literal or a time, and without it where it is code.
"""

from __future__ import annotations

import ast
import re
from typing import Any, Final

import griffe

_TIME: Final = re.compile(r"(?:timedelta|datetime)\([^()]*\)")


class Values(griffe.Extension):
    """Rewrites the defaults and the values of a package when it has been loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite them all."""
        _rewrite(pkg, pkg)


def _rewrite(item: griffe.Object, package: griffe.Module) -> None:
    if isinstance(item, griffe.Function):
        for parameter in item.parameters:
            if isinstance(parameter.default, griffe.Expr):
                parameter.default = shown(parameter.default, package)
    elif isinstance(item, griffe.Attribute) and _is_code(item):
        item.value = None
    # Constants last: defaults take their values.
    members = [each for each in item.members.values() if isinstance(each, griffe.Object)]
    for member in sorted(members, key=lambda each: each.is_attribute):
        _rewrite(member, package)


def shown(default: griffe.Expr, package: griffe.Module) -> griffe.Expr | str:
    """A default with the value of each constant that the package does not export."""
    text = _text(default, package)
    # Only an expression has links.
    return default if text == str(default) else text


def _text(part: str | griffe.Expr, package: griffe.Module) -> str:
    if isinstance(part, griffe.ExprName | griffe.ExprAttribute):
        return _value_of(part.canonical_path, package) or str(part)
    if isinstance(part, str):
        return part
    return "".join(_text(each, package) for each in part.iterate(flat=False))


def _value_of(path: str, package: griffe.Module) -> str | None:
    root, _, inner = path.partition(".")
    if root != package.name or path.rpartition(".")[2] in (package.exports or ()):
        return None
    try:
        found: Any = package[inner]
        constant = found.final_target if found.is_alias else found
    except (KeyError, griffe.AliasResolutionError):
        # A class of another package.
        return None
    is_constant = constant.is_attribute and constant.parent.is_module
    return str(constant.value) if is_constant else None


def _is_code(item: griffe.Attribute) -> bool:
    # The default of a member of a class is a part of its signature.
    is_constant = isinstance(item.parent, griffe.Module)
    return (
        is_constant and "TypeAlias" not in str(item.annotation) and not _is_value(str(item.value))
    )


def _is_value(code: str) -> bool:
    if _TIME.fullmatch(code):
        return True
    try:
        ast.literal_eval(code)
    except (SyntaxError, ValueError):
        return False
    return len(code) < 80
