"""The contract itself: it fails for a store that breaks a promise, and what it expects of a test class."""

from __future__ import annotations

from collections import Counter, defaultdict
from textwrap import dedent, indent

import pytest
from tests.cases import case

pytest_plugins = ["pytester"]

STORES = {
    "revokes_again": """
        def revoke(self, key_id, *, owner_id, at, change=None):
            record = self._find_own(key_id, owner_id)
            if record is not None:
                self._records[key_id] = record = replace(record, revoked_at=at)
            return record
    """,
    "writes_back_what_it_read": """
        def touch(self, last_used):
            for key_id, at in last_used.items():
                record = self._records.get(key_id)
                if record is not None:
                    self._records[key_id] = replace(record, last_used_at=at, revoked_at=None)
    """,
    "counts_before_it_locks": """
        def insert(self, record, *, max_active, now, change=None):
            if max_active is not None:
                active = sum(r.status(now).value == "active" for r in list(self._records.values()))
                time.sleep(0.01)
                if active >= max_active:
                    raise KeyLimitReached(max_active)
            super().insert(record, max_active=None, now=now, change=change)
    """,
    "ignores_case": """
        def find(self, key_id):
            return super().find(key_id) or super().find(key_id.upper())
    """,
    "rotates_in_two_steps": """
        def rotate(self, key_id, *, successor, ends_at, max_active, now, change=None):
            revoked = self.revoke(key_id, owner_id=successor.owner_id, at=now, change=change)
            self.insert(successor, max_active=max_active, now=now, change=lambda _: ())
            return revoked
    """,
    "calls_its_hook_after_the_change": """
        def revoke(self, key_id, *, owner_id, at, change=None):
            record = super().revoke(key_id, owner_id=owner_id, at=at, change=lambda _: ())
            if self.on_change is not None and record is not None:
                for event in change(record):
                    self.on_change(None, event)
            return record
    """,
    "calls_its_hook_where_nothing_changed": """
        def expire(self, key_id, *, owner_id, at, change=None):
            record = super().expire(key_id, owner_id=owner_id, at=at, change=lambda _: ())
            if self.on_change is not None and record is not None:
                call_on_change(self.on_change, None, change(record))
            return record
    """,
    "writes_past_its_hook": """
        def revoke(self, key_id, *, owner_id, at, change=None):
            return super().revoke(key_id, owner_id=owner_id, at=at, change=change or (lambda _: ()))
    """,
    "lists_what_is_deleted": """
        def list(self, query):
            return [r for r in self._records.values() if r.owner_id == query.owner_id]
    """,
    "lets_a_mark_stand_still": """
        def record_lease(self, lease):
            self._leases.setdefault(lease[:2], lease)
    """,
    "announces_an_end_again": """
        def announce_expiry(self, key_id, *, days, change=None):
            self._records[key_id] = replace(self._records[key_id], announced_days=None)
            return super().announce_expiry(key_id, days=days, change=change)
    """,
    "lists_ends_of_revoked_keys": """
        def list_expiring(self, query):
            found = [r for r in self._records.values() if r.announced_days == query.announced_days]
            return sorted((r for r in found if r.expires_at), key=lambda r: (r.expires_at, r.id))
    """,
    "forgets_a_lease_that_is_in_use": """
        def forget_lease(self, lease):
            self._leases.pop(lease[:2], None)
    """,
}


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract needs none, and each run of pytest would import them anew."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


IMPORTS = """
import time
from dataclasses import replace
import pytest
from msk_auth.core.store import call_on_change
from msk_auth.errors import KeyLimitReached
from msk_auth.stores.memory import MemoryKeyStore
from msk_auth.testing import StoreContract
"""


def contract_of(name: str, methods: str, hook: str = "audited_store") -> str:
    """The contract of a store with these methods; `hook` names the fixture of a store with a hook."""
    return f"""
class {name}(MemoryKeyStore):
{indent(dedent(methods), "    ")}

class Test_{name}(StoreContract):
    @pytest.fixture
    def store(self):
        return {name}()

    @pytest.fixture
    def {hook}(self, on_change):
        return {name}(on_change=on_change)
"""


def outcomes_of(pytester: pytest.Pytester, *tests: str) -> dict[str, Counter[str]]:
    """How many tests of each class had each outcome. Failures are counted, so they need no traceback."""
    pytester.makepyfile(IMPORTS + "".join(tests))
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for reports in pytester.inline_run("-q", "--tb=no").listoutcomes():
        for report in reports:
            found[report.nodeid.split("::")[1]][report.outcome] += 1
    return found


def test_the_contract_finds_each_fault(pytester: pytest.Pytester) -> None:
    tests = [contract_of(fault, methods) for fault, methods in STORES.items()]
    outcomes = outcomes_of(pytester, *tests)
    for fault in STORES:
        with case(fault):
            assert outcomes[f"Test_{fault}"]["failed"] >= 1
            assert outcomes[f"Test_{fault}"]["passed"] > 10


def test_a_store_without_a_hook_skips_its_tests(pytester: pytest.Pytester) -> None:
    outcomes = outcomes_of(pytester, contract_of("plain", "audited = False", hook="unused"))
    assert outcomes["Test_plain"].keys() == {"passed", "skipped"}
    assert outcomes["Test_plain"]["skipped"] == 6


def test_a_class_without_its_fixture_fails_with_its_name(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "from msk_auth.testing import StoreContract\n\nclass TestStore(StoreContract):\n    pass\n"
    )
    result = pytester.runpytest("-q", "-k", "test_an_id_is_used_once")
    result.stdout.fnmatch_lines(
        ["*NotImplementedError: give your test class a fixture named `store`"]
    )
