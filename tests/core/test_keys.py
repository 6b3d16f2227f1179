"""The key format (design, section 3): made, recognised, shown, and never shown."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import pickle
import re
import secrets
import string
import traceback
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case
from tests.contract.world import checksum

from msk_auth import KeyFormat
from msk_auth.errors import ConfigurationError, CredentialRefused
from msk_auth.keys import KeyValue

VECTORS = (
    "msk_AAAAAAAAAAAA_000000000000000000000000000000002uGo9O",
    "msk_AAAAAAAAAAAA_0000000000000000000000000000000700iItp",
    "msk_000000000000_zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz3ZQm9b",
)
KEY = VECTORS[0]
SECRET = KEY[17:]
PATTERN = re.compile(r"\bmsk_[0-9A-Za-z]{12}_[0-9A-Za-z]{32}[0-4][0-9A-Za-z]{5}\b")

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
FORMAT = KeyFormat()
keys = st.builds(lambda _: KeyFormat().generate().reveal(), st.integers())
prefixes = st.from_regex(r"(?!eyj)[a-z][a-z0-9]{1,15}", fullmatch=True)


def refuses(text: str, key_format: KeyFormat = FORMAT) -> bool:
    try:
        key_format.parse(text)
    except CredentialRefused as refused:
        # Nothing of what was presented is repeated, and there is nothing yet that could name a key.
        return refused.code == "key_malformed" and refused.key_id is None
    return False


@pytest.mark.parametrize("key", VECTORS)
def test_the_published_vectors_are_keys(key: str) -> None:
    parsed = FORMAT.parse(key)
    assert (parsed.id, parsed.reveal()) == (key[4:16], key)
    assert checksum(key[:-6]) == key[-6:]
    assert PATTERN.fullmatch(key)


@given(prefixes)
def test_a_generated_key_is_read_back(prefix: str) -> None:
    key_format = KeyFormat(prefix)
    made = key_format.generate()
    parsed = key_format.parse(made.reveal())
    assert (parsed.id, parsed.reveal(), parsed.mask) == (made.id, made.reveal(), made.mask)
    assert made.mask == f"{prefix}_{made.id}_…"
    assert key_format.claims(made.reveal())


def test_every_character_is_drawn_alone_from_the_whole_alphabet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # `secrets.choice` is without modulo bias; what is left to show is that it draws from all 62.
    drawn: list[str] = []
    monkeypatch.setattr(secrets, "choice", lambda options: drawn.append(options) or options[-1])
    key = FORMAT.generate().reveal()
    assert drawn == [ALPHABET] * (12 + 32)
    assert key[:49] == f"msk_{'z' * 12}_{'z' * 32}"
    assert string.digits + string.ascii_uppercase + string.ascii_lowercase == ALPHABET


def test_every_change_of_one_character_is_refused() -> None:
    for position in range(len(KEY)):
        with case(position):
            for other in string.printable:
                if other != KEY[position]:
                    assert refuses(KEY[:position] + other + KEY[position + 1 :])


def test_every_insertion_and_removal_of_one_character_is_refused() -> None:
    for position in range(len(KEY) + 1):
        with case(position):
            for other in ALPHABET + "_-. \n\x00":
                assert refuses(KEY[:position] + other + KEY[position:])
            if position < len(KEY):
                assert refuses(KEY[:position] + KEY[position + 1 :])


def test_every_truncation_is_refused() -> None:
    for length in range(len(KEY)):
        with case(length):
            assert refuses(KEY[:length])


@given(keys, st.integers(0, 53))
def test_two_neighbouring_characters_swapped_are_refused(key: str, at: int) -> None:
    swapped = key[:at] + key[at + 1] + key[at] + key[at + 2 :]
    assert refuses(swapped) or swapped == key


@pytest.mark.parametrize(
    "text",
    [
        KEY + "\n",
        KEY + "\r\n",
        KEY + "\x00",
        " " + KEY,
        KEY + " ",
        KEY.upper(),
        KEY.replace("msk", "MSK"),
        KEY.replace("msk_", "msk-"),
        KEY.replace("0", "٠", 1),  # ARABIC-INDIC DIGIT ZERO
        KEY.replace("0", "０", 1),  # FULLWIDTH DIGIT ZERO
        KEY.replace("A", "Α", 1),  # GREEK CAPITAL LETTER ALPHA
        KEY.replace("A", "А", 1),  # CYRILLIC CAPITAL LETTER A
        KEY.replace("k", "K", 1),  # KELVIN SIGN
        KEY.replace("s", "ſ", 1),  # LATIN SMALL LETTER LONG S
        KEY.replace("G", "\ud800", 1),  # a lone surrogate
        "msk_%%%%%%%%%%%%_" + SECRET,  # wildcards of SQL
        "msk_____________" + SECRET,
        "msk_************_" + SECRET,
        f"{KEY}{KEY}",
        "msk_" + "A" * 100_000,
        "msk_",
        "msk__",
        "",
        "sha256:" + "0" * 64,
    ],
    ids=range(24),
)
def test_what_only_looks_like_a_key_is_refused(text: str) -> None:
    assert refuses(text)


@given(st.text())
def test_no_text_is_taken_for_a_key(text: str) -> None:
    assert refuses(text)
    assert refuses(f"msk_{text}")


def test_a_checksum_beyond_32_bits_equals_none() -> None:
    # 62^6 is more than 2^32: a comparison modulo 2^32 would accept a second spelling of a checksum.
    number = zlib.crc32(KEY[:-6].encode()) + 2**32
    digits = ""
    for _ in range(6):
        number, digit = divmod(number, 62)
        digits = ALPHABET[digit] + digits
    assert number == 0
    assert digits[0] in ALPHABET[5:]
    assert refuses(KEY[:-6] + digits)
    # And the largest that begins with 4, which the pattern lets through.
    assert refuses(KEY[:-6] + "4zzzzz")


def test_the_checksum_covers_the_prefix_and_the_id() -> None:
    assert refuses(KEY, KeyFormat("other"))
    moved = KEY.replace("AAAAAAAAAAAA", "BAAAAAAAAAAA")
    assert refuses(moved)
    assert not refuses(moved[:-6] + checksum(moved[:-6]))


def test_a_format_claims_its_prefix_only() -> None:
    assert FORMAT.claims("msk_whatever")
    assert not FORMAT.claims("mskx_whatever")
    assert not FORMAT.claims("MSK_whatever")
    assert not FORMAT.claims("msk")
    assert not KeyFormat("acme").claims(KEY)


@pytest.mark.parametrize(
    "prefix",
    ["", "m", "Msk", "MSK", "1sk", "ms_k", "ms-k", "ms k", "msk\n", "é2", "m" * 17, "m.k", "m٣"],
)
def test_a_prefix_of_another_form_is_refused_while_starting(prefix: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Use 2 to 16 characters, .*such as 'msk'"):
        KeyFormat(prefix)


def test_the_shortest_and_the_longest_prefix_work() -> None:
    assert repr(KeyFormat("ab")) == "KeyFormat('ab')"
    assert KeyFormat("a" * 16).prefix == "a" * 16


def test_keys_of_an_older_prefix_are_still_read() -> None:
    renamed = KeyFormat("acme", older_prefixes=["msk", "ac"])
    assert renamed.generate().reveal().startswith("acme_")
    for prefix in ("acme", "msk", "ac"):
        made = KeyFormat(prefix).generate()
        assert renamed.claims(made.reveal())
        read = renamed.parse(made.reveal())
        assert (read.id, read.mask) == (made.id, f"{prefix}_{made.id}_…")
    assert repr(renamed) == "KeyFormat('acme', older_prefixes=('msk', 'ac'))"
    assert refuses(KeyFormat("acm").generate().reveal(), renamed)
    assert not renamed.claims("acm_x")


def test_the_checksum_ties_a_key_to_its_own_prefix() -> None:
    both = KeyFormat("acme", older_prefixes=["msk"])
    assert refuses(KEY.replace("msk_", "acme_"), both)
    assert refuses("acme_" + KEY, both)
    assert not refuses(KEY, both)


@pytest.mark.parametrize("older", [["msk"], ["acme", "acme"], ["acme", "msk"]])
def test_prefixes_that_clash_are_refused_while_starting(older: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"is given twice\. Give each prefix once"):
        KeyFormat("msk", older_prefixes=older)


@pytest.mark.parametrize("prefix", ["eyj", "eyjhbgci"])
def test_a_prefix_that_looks_like_a_jwt_is_refused_while_starting(prefix: str) -> None:
    for make in (
        lambda: KeyFormat(prefix),
        lambda: KeyFormat(older_prefixes=[prefix]),
    ):
        with pytest.raises(
            ConfigurationError, match=r"beginning of a JWT\. Choose one that does not"
        ):
            make()


@pytest.mark.parametrize("older", [["Acme"], "acme"])
def test_every_older_prefix_has_the_form_of_one(older: list[str] | str) -> None:
    with pytest.raises(ConfigurationError, match="2 to 16 characters"):
        KeyFormat(older_prefixes=older)


# The value leaves through `reveal` alone (guarantee G1).


@dataclasses.dataclass
class Holder:
    value: KeyValue


def parsed() -> KeyValue:
    return FORMAT.parse(KEY)


@pytest.mark.parametrize(
    "show",
    [
        repr,
        str,
        format,
        ascii,
        lambda value: f"{value}",
        lambda value: f"{value!r:>80}",
        lambda value: f"{value:80}",
        lambda value: "%s %r" % (value, value),  # noqa: UP031
        "{0} {0!r} {0.mask} {0.id}".format,
        lambda value: repr([value, {"key": value}, (value,)]),
        lambda value: repr(Holder(value)),
        lambda value: json.dumps({"key": value}, default=str),
        lambda value: repr(dir(value)),
    ],
    ids=range(13),
)
def test_no_way_of_showing_a_key_shows_its_secret(show) -> None:
    shown = show(parsed())
    assert SECRET[:8] not in shown
    assert SECRET[-6:] not in shown


def test_text_of_a_key_is_its_mask() -> None:
    value = parsed()
    assert str(value) == value.mask == f"{value}" == "msk_AAAAAAAAAAAA_…"
    assert repr(value) == "<KeyValue msk_AAAAAAAAAAAA_…>"
    assert f"{value:>20}" == "  msk_AAAAAAAAAAAA_…"


@pytest.mark.parametrize(
    "take",
    [
        pickle.dumps,
        lambda value: pickle.dumps(value, protocol=0),
        copy.copy,
        copy.deepcopy,
        lambda value: copy.deepcopy([value]),
        json.dumps,
        lambda value: json.dumps({"key": value}),
        lambda value: dataclasses.asdict(Holder(value)),
        lambda value: dataclasses.astuple(Holder(value)),
        vars,
        dict,
        list,
        bytes,
        len,
    ],
    ids=range(14),
)
def test_a_key_cannot_be_copied_out_of_the_process_by_accident(take) -> None:
    with pytest.raises(TypeError) as refused:
        take(parsed())
    assert SECRET not in str(refused.value)


def test_a_key_in_a_logged_traceback_with_locals_is_masked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    value = parsed()
    with pytest.raises(ZeroDivisionError) as failed:
        _ = (value, 1 / 0)
    logging.getLogger("app").error("using %s and %r failed", value, value)
    shown = "".join(
        traceback.TracebackException.from_exception(failed.value, capture_locals=True).format()
    )
    assert "<KeyValue msk_AAAAAAAAAAAA_…>" in shown
    assert SECRET not in shown + caplog.text
