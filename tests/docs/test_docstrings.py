"""What awaits is documented as fully as what blocks, in the source too: an editor shows it where it is called."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest
from tests.cases import case

import msk_auth
from msk_auth import leaks
from msk_auth.stores import memory, sqlalchemy

from .test_reference import PUBLIC_MODULES, public_names

PAIRS: list[tuple[Any, Any]] = [
    *(
        (getattr(msk_auth, name), getattr(msk_auth, f"Async{name}"))
        for name in msk_auth.__all__
        if f"Async{name}" in msk_auth.__all__
    ),
    (leaks.GitHubLeakReceiver, leaks.AsyncGitHubLeakReceiver),
    (memory.MemoryKeyStore, memory.AsyncMemoryKeyStore),
    (sqlalchemy.ModelUsers, sqlalchemy.AsyncModelUsers),
    (sqlalchemy.SQLAlchemyKeyStore, sqlalchemy.AsyncSQLAlchemyKeyStore),
]
# What differs, and not in words alone.
DIFFERENT = {
    "Authenticator.watch",  # a websocket too
    "ModelUsers.logins_by",  # what it takes may be async
    "SQLAlchemyKeyStore.prepare",  # its example awaits
    "Watch.stream",  # a task of its own
}
PUBLIC = sorted(name for module in PUBLIC_MODULES for name in public_names(module))


def methods(kind: type) -> dict[str, str]:
    found = inspect.getmembers(kind, inspect.isroutine)
    return {
        name: inspect.getdoc(method) or ""
        for name, method in found
        if not name.startswith("_") and not name.startswith("test_")
    }


@pytest.mark.parametrize(("blocking", "awaiting"), PAIRS, ids=lambda kind: kind.__name__)
def test_what_awaits_says_what_it_does_in_the_same_words(blocking: type, awaiting: type) -> None:
    theirs = methods(awaiting)
    for name, text in methods(blocking).items():
        path = f"{blocking.__name__}.{name}"
        if name in theirs and path not in DIFFERENT and not text.startswith("See :"):
            assert theirs[name] == text, path


def test_no_docstring_says_no_more_than_where_to_read() -> None:
    for name in PUBLIC:
        with case(name):
            module, _, member = name.rpartition(".")
            public: Any = getattr(importlib.import_module(module), member)
            texts = {name: inspect.getdoc(public) or ""}
            if inspect.isclass(public):
                texts |= methods(public)
            # A method of a protocol is described there, and left out of the reference.
            assert [each for each, text in texts.items() if re.match(r"As :|:class:", text)] == []
