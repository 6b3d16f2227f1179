"""The keys of the secrets of tasks, as a worker gets them in a setting."""

from __future__ import annotations

import pytest

from msk_auth.errors import ConfigurationError
from task_service.parameter_keys import ParameterKeys
from task_service.settings import load_settings

KEYS = ParameterKeys({"2026-01-01-a": bytes(range(32)), "b.c_d": b"\xff" * 32}, "b.c_d")


def test_what_is_written_is_read_and_only_opens() -> None:
    read = ParameterKeys.parse(KEYS.to_text())
    assert read.values == KEYS.values
    assert read.current is None


def test_no_key_is_in_a_repr() -> None:
    assert "ff" not in repr(KEYS)
    assert "values" not in repr(KEYS)


@pytest.mark.parametrize(
    "text",
    ["geheim", "a=", "=QUJD", "a=QUJD", f"{KEYS.to_text()},", f"{KEYS.to_text()}=", "a=geheim!"],
)
def test_what_has_another_form_is_refused_and_not_shown(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASK_SERVICE_PARAMETER_KEYS", text)
    with pytest.raises(ConfigurationError) as refused:
        load_settings()
    message = "write the output of task-service parameter-keys"
    assert str(refused.value) == f"TASK_SERVICE_PARAMETER_KEYS: {message}"
