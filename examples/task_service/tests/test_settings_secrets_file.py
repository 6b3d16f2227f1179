"""The file of secrets: made once, read by its owner only, and never quoted."""

from __future__ import annotations

import base64
import json
import os
import secrets
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msk_auth import SigningKey, TokenProfile
from msk_auth.errors import ConfigurationError
from task_service.secrets_file import FILE_NAME, Secrets, load_or_create_secrets

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def _content(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / FILE_NAME).read_text())
    return content


def _write(folder: Path, content: object) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / FILE_NAME).write_text(text)
    (folder / FILE_NAME).chmod(0o600)


def _refusal(folder: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_or_create_secrets(folder, NOW)
    return str(caught.value)


def _token(secrets: Secrets) -> tuple[TokenProfile, str]:
    profile = TokenProfile(issuer="i", audience="a", keys=secrets.token_keys)
    return profile, profile.issue(subject="u", now=NOW, lifetime=timedelta(minutes=1))


def test_the_secrets_are_made_once_and_read_again(tmp_path: Path) -> None:
    first = load_or_create_secrets(tmp_path, NOW)
    again = load_or_create_secrets(tmp_path, NOW + timedelta(days=9))

    _, token = _token(first)
    profile, _ = _token(again)
    assert profile.verify(token, NOW).subject == "u"
    assert again.peppers.current == first.peppers.current
    assert again.peppers[again.peppers.current] == first.peppers[first.peppers.current]
    assert first.peppers.current.startswith("2026-11-21-")
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_only_the_owner_can_read_the_file_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        load_or_create_secrets(tmp_path, NOW)
    finally:
        os.umask(umask)

    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


def test_one_that_loses_the_race_takes_the_winner_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    winner = load_or_create_secrets(tmp_path, NOW)
    monkeypatch.setattr(Path, "exists", lambda _: False)
    loser = load_or_create_secrets(tmp_path, NOW)

    assert loser.token_keys[0].export() == winner.token_keys[0].export()
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_a_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    load_or_create_secrets(tmp_path, NOW)
    (tmp_path / FILE_NAME).chmod(mode)

    assert f"mode {mode:04o}" in _refusal(tmp_path)
    assert "chmod 600" in _refusal(tmp_path)


def test_rotating_is_adding_an_entry(tmp_path: Path) -> None:
    old = load_or_create_secrets(tmp_path, NOW)
    content = _content(tmp_path)
    newer = SigningKey.generate("newer", "Ed25519")
    content["token_keys"].insert(
        0, {"kid": "newer", "algorithm": "Ed25519", "key": newer.export().decode()}
    )
    pepper = secrets.token_bytes(32)
    content["peppers"]["values"]["newer"] = base64.urlsafe_b64encode(pepper).decode().rstrip("=")
    content["peppers"]["current"] = "newer"
    _write(tmp_path, content)
    rotated = load_or_create_secrets(tmp_path, NOW)

    _, token = _token(old)
    profile, _ = _token(rotated)
    assert rotated.token_keys[0].kid == "newer"
    assert profile.verify(token, NOW).subject == "u"
    assert rotated.peppers.get(old.peppers.current) == old.peppers[old.peppers.current]
    assert rotated.peppers["newer"] == pepper


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda content: content.pop("peppers"), "peppers"),
        (lambda content: content.update(more="geheim"), "more"),
        (lambda content: content["peppers"].update(current="other"), "'other' is not in the ring"),
        (
            lambda content: content["peppers"].update(values={"a": "geheim!"}),
            "not base64url at: peppers.values.a",
        ),
        (lambda content: content["peppers"].update(values={"a": "geheim"}, current="a"), "bytes"),
        (lambda content: content["peppers"]["values"].update(a="A" * 43), "'a' has a pattern"),
        (lambda content: content.update(token_keys=[]), "invalid at: token_keys"),
        (
            lambda content: content["token_keys"][0].update(algorithm="none"),
            "at: token_keys.0.algorithm",
        ),
        (lambda content: content["token_keys"][0].update(algorithm="ES256"), "PEM"),
        (
            lambda content: content["token_keys"][0].update(key="geheim!"),
            "not base64url at: token_keys.0.key",
        ),
        (lambda content: content["token_keys"][0].update(key="geheim"), "bytes"),
        (lambda content: content["token_keys"][0].update(key=7), "invalid at: token_keys.0.key"),
    ],
)
def test_content_that_cannot_be_used_is_named_and_not_quoted(
    tmp_path: Path, change: Any, expected: str
) -> None:
    load_or_create_secrets(tmp_path, NOW)
    content = _content(tmp_path)
    secret = content["token_keys"][0]["key"]
    change(content)
    _write(tmp_path, content)
    message = _refusal(tmp_path)

    assert expected in message
    assert str(tmp_path / FILE_NAME) in message
    assert "geheim" not in message
    assert secret not in message


@given(st.text(max_size=80))
def test_any_other_content_is_refused_without_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    folder = tmp_path_factory.mktemp("secrets")
    _write(folder, text.encode("utf-8", "replace").decode())

    assert "Its content is invalid" in _refusal(folder)


def test_what_is_no_file_or_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()

    assert "cannot be used" in _refusal(tmp_path)
    assert "No such file" in _refusal(tmp_path / "nowhere")


def test_a_device_or_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).symlink_to("/dev/null")

    assert "not a regular file" in _refusal(tmp_path)


def test_no_secret_is_in_a_repr(tmp_path: Path) -> None:
    secrets = load_or_create_secrets(tmp_path, NOW)

    for value in _content(tmp_path)["peppers"]["values"].values():
        assert value not in repr(secrets)
