"""Every setting of the task service as Markdown, from the model that reads them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from task_service.settings import PREFIX, Settings

_ATTRIBUTE: Final = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)


def descriptions() -> dict[str, str]:
    """From the name of a setting to what its model says about it."""
    text = inspect.getdoc(Settings) or ""
    said = {name: " ".join(words.split()) for name, words in _ATTRIBUTE.findall(text)}
    for name, field in Settings.model_fields.items():
        if field.description:
            said[name] = field.description
    return said


def render() -> str:
    """One section for each setting: what it does, its default, and what it takes."""
    said = descriptions()
    parts: list[str] = []
    for name, field in Settings.model_fields.items():
        parts += [
            f"### {PREFIX}{name.upper()}",
            said[name],
            f"Takes {accepted(field)}.{_default(field)}",
        ]
    return "\n\n".join(parts)


def accepted(field: FieldInfo) -> str:
    """What a value may be, in words."""
    kind: Any = field.annotation
    bounds = {type(each): each for each in field.metadata}
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(f"`{each}`" for each in get_args(kind))
    if kind is int:
        low, high = bounds.get(annotated_types.Ge), bounds.get(annotated_types.Le)
        if low is not None and high is not None:
            return f"a whole number from {low.ge} to {high.le:,}"
        return "a whole number" if low is None else f"a whole number, {low.ge} or more"
    if kind is bool:
        return "`true` or `false`"
    if kind is float:
        return "a number"
    if kind is Path:
        return "the path of a folder"
    if get_origin(kind) is tuple:
        return "IP addresses or networks, with commas between them"
    return "text"


def _default(field: FieldInfo) -> str:
    """A sentence, unless there is no default, or the description says what it depends on."""
    if not isinstance(field.default, str | int) or field.default == "":
        return ""
    return f" The default is `{field.default}`."
