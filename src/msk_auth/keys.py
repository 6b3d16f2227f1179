"""Arguments and results of the operations on keys, beside the records and limits at the top of the package."""

from __future__ import annotations

from msk_auth.core.key_management import CreatedKey
from msk_auth.core.keys import KeyValue
from msk_auth.core.model import KeyFilter, KeyPage

__all__ = [
    "CreatedKey",
    "KeyFilter",
    "KeyPage",
    "KeyValue",
]
