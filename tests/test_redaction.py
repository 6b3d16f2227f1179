"""What is logged holds no key and no token, whatever logged it (guarantee G1; ASVS 5.0, 16.2.5)."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.support import NOW, profile, signing_key

from msk_auth import KeyFormat
from msk_auth.redaction import RedactingFilter, redact

KEY = "msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O"
MASK = "msk_AAAAAAAAAAAA_…"
SECRET = KEY[17:]
JWT = profile().issue(subject="ann", now=NOW, lifetime=timedelta(hours=1))

keys = st.from_regex(r"[a-z][a-z0-9]{1,15}", fullmatch=True).map(
    lambda prefix: KeyFormat(prefix).generate()
)
tokens = st.builds(
    lambda algorithm, subject: profile(signing_key(algorithm)).issue(
        subject=subject, now=NOW, lifetime=timedelta(hours=1)
    ),
    st.sampled_from(["HS256", "ES256"]),
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=50),
)
# Text around a secret: word characters, underscores, what begins a key or a token.
surroundings = st.text() | st.text(st.sampled_from("aZ09_.-eyJmsk/=:\n\"'\\ é"), max_size=60)


def test_keys_become_their_mask_and_tokens_a_word() -> None:
    for text, expected in {
        KEY: MASK,
        f"key={KEY}&x=1": f"key={MASK}&x=1",
        f"Authorization: Bearer {KEY}": f"Authorization: Bearer {MASK}",
        f'{{"key": "{KEY}"}}': f'{{"key": "{MASK}"}}',
        f"{KEY}, {KEY}.": f"{MASK}, {MASK}.",
        f"{KEY}{KEY}": "msk_AAAAAAAAAAAA_…_AAAAAAAAAAAA_…",
        f"API_KEY_{KEY}": f"API_KEY_{MASK}",
        f"9{KEY}x": f"9{MASK}",
        f"é{KEY}": f"é{MASK}",
        KEY.replace("msk", "acme2"): MASK.replace("msk", "acme2"),
        KEY[:-6]: MASK,  # cut off
        JWT: "[JWT]",
        f"Bearer {JWT} x": "Bearer [JWT] x",
        f"token_{JWT}": "token_[JWT]",
        f"x{JWT}": "x[JWT]",
        f"{JWT},{JWT}": "[JWT],[JWT]",
        JWT.rpartition(".")[0] + ".": "[JWT]",  # unsigned
        f"{JWT}.a.b": "[JWT]",  # encrypted tokens have five segments
        f"log_202605011200_{JWT}": "log_202605011200_…",
        f"{JWT}_{KEY}": "[JWT]",
        f"eyJ_{KEY}": f"eyJ_{MASK}",
        # A secret that contains what begins a token, before two full stops.
        "msk_AAAAAAAAAAAA_abceyJ00000000000000000000000000002uGo9O.a.b": MASK,
    }.items():
        assert redact(text) == expected


def test_other_text_stays_as_it_is() -> None:
    for text in (
        "", "nothing to hide", MASK, "msk_", "msk_AAAAAAAAAAAA", "snake_case_name_of_a_thing", "max_organization_members",
        "test_organization_settings_page", "eyJ", "eyJhbGciOiJIUzI1NiJ9", "eyJ.x", "https://example.com/a.b.c", "1.2.3",
    ):  # fmt: skip
        assert redact(text) == text


def survives(secret: str, text: str) -> bool:
    """True if half of a secret is still there."""
    half = len(secret) // 2
    return any(secret[i : i + half] in text for i in range(len(secret) - half + 1))


@given(
    surroundings,
    st.lists(keys, min_size=1, max_size=4),
    st.sampled_from(["", " ", "_", ".", "-"]),
    surroundings,
)
def test_no_key_survives_in_any_text(
    before: str, many: list[Any], between: str, after: str
) -> None:
    text = before + between.join(key.reveal() for key in many) + after
    record = logging.LogRecord("n", 30, "f", 1, "%s", (text,), None)
    assert RedactingFilter().filter(record) is True
    for shown in (redact(text), record.getMessage()):
        for key in many:
            assert not survives(key.reveal().rpartition("_")[2], shown)


@given(surroundings, tokens, surroundings)
def test_no_token_survives_in_any_text(before: str, token: str, after: str) -> None:
    _, claims, signature = token.split(".")
    shown = redact(f"{before}{token}{after}")
    assert not survives(signature, shown)
    assert not survives(claims, shown)


@given(surroundings)
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact(f"{text}{KEY}{text}{JWT}")
    assert redact(once) == once


@pytest.mark.parametrize(
    "piece", ["eyJ", "eyJ-", "eyJ.", "eyJa.eyJ", "_AAAAAAAAAAAA_", "_", "A", "msk_"]
)
def test_hostile_text_is_redacted_in_time_that_grows_with_its_length(piece: str) -> None:
    text = piece * (500_000 // len(piece))
    # Of the processor: who else uses it does not count.
    start = time.thread_time()
    redact(text)
    assert time.thread_time() - start < 1


# The filter.


@pytest.fixture
def log() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(
        logging.Formatter("%(levelname)s %(message)s %(extra)s", defaults={"extra": ""})
    )
    handler.addFilter(RedactingFilter())
    logger = logging.getLogger("tests.redaction")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, output
    logger.removeHandler(handler)
    logger.propagate = True


Log = tuple[logging.Logger, io.StringIO]


@pytest.mark.parametrize(
    ("message", "args"),
    [
        (f"the key {KEY}", ()),
        ("the key %s", (KEY,)),
        ("the key %r and %s", (KEY, 5)),
        ("%(key)s", ({"key": KEY},)),
        ("%s", ({"headers": {"authorization": [f"Bearer {KEY}"]}},)),
        ("%s", ([("Authorization", f"Bearer {KEY}")],)),
        ("%s", (KEY.encode(),)),
        ("%s", (ValueError(KEY),)),
        ("100 %% of %s", (KEY,)),
        ("5 % of " + KEY, ()),
    ],
    ids=range(10),
)
def test_message_and_arguments_are_redacted(log: Log, message: str, args: tuple[Any, ...]) -> None:
    logger, output = log
    logger.warning(message, *args)
    assert MASK in output.getvalue()
    assert SECRET not in output.getvalue()


def test_a_token_in_a_message_is_redacted(log: Log) -> None:
    logger, output = log
    logger.warning("bad token %s", JWT)
    assert output.getvalue() == "WARNING bad token [JWT] \n"


def test_tracebacks_are_redacted(log: Log) -> None:
    def fail() -> None:
        try:
            {}[KEY]
        except KeyError as error:
            raise RuntimeError(f"refused {JWT}") from error

    logger, output = log
    try:
        fail()
    except RuntimeError:
        logger.exception("failed")
    shown = output.getvalue()
    assert "RuntimeError: refused [JWT]" in shown
    assert f"KeyError: '{MASK}'" in shown
    assert SECRET not in shown
    assert JWT not in shown


def test_a_traceback_that_was_rendered_already_is_redacted(log: Log) -> None:
    logger, output = log
    error = ValueError("x")
    record = logger.makeRecord("n", logging.ERROR, "f", 1, "failed", (), (ValueError, error, None))
    record.exc_text = f"Traceback: {KEY}"
    logger.handle(record)
    assert output.getvalue() == f"ERROR failed \nTraceback: {MASK}\n"


def test_stacks_are_redacted(log: Log) -> None:
    logger, output = log
    record = logger.makeRecord("n", logging.ERROR, "f", 1, "here", (), None, sinfo=f"Stack: {KEY}")
    logger.handle(record)
    assert f"Stack: {MASK}" in output.getvalue()


def test_text_in_extra_is_redacted_and_other_objects_are_kept(log: Log) -> None:
    logger, output = log
    logger.warning("here", extra={"extra": KEY})
    logger.warning("here", extra={"extra": 5})
    assert output.getvalue() == f"WARNING here {MASK}\nWARNING here 5\n"


@pytest.mark.parametrize("args", [("x", "y"), (), ("x",)])
def test_a_wrong_log_call_fails_nothing_and_shows_nothing(log: Log, args: tuple[Any, ...]) -> None:
    # Without the filter `logging` reports such a call on stderr and goes on; so must the filter.
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError(KEY)

    logger, output = log
    logger.warning("%d {}".format(KEY), *args, Broken())  # noqa: G001, UP032
    assert output.getvalue().startswith("WARNING <a log call that cannot be formatted: ")
    assert SECRET not in output.getvalue()
