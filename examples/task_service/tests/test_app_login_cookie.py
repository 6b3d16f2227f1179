"""The cookie that holds a login (ASVS 5.0, section 3.3)."""

from __future__ import annotations

import pytest
from starlette.responses import Response

from task_service import login_cookie


def test_it_is_bound_to_this_host_kept_from_scripts_and_never_sent_from_another_site() -> None:
    response = Response()
    login_cookie.write(response, "eyJ.a.b", max_age=3600)
    name, *attributes = response.headers["set-cookie"].split("; ")
    assert name == "__Host-task_session=eyJ.a.b"
    assert {attribute.lower() for attribute in attributes} == {
        "httponly",
        "max-age=3600",
        "path=/",
        "samesite=strict",
        "secure",
    }


def test_clearing_names_the_same_cookie() -> None:
    response = Response()
    login_cookie.clear(response)
    name, *attributes = response.headers["set-cookie"].lower().split("; ")
    assert name == '__host-task_session=""'
    assert {"max-age=0", "path=/", "secure"} <= set(attributes)


@pytest.mark.parametrize(
    ("lines", "token"),
    [
        ([], None),
        ([b"other=1"], None),
        ([b"__Host-task_session=abc"], "abc"),
        ([b"a=1; __Host-task_session=abc; b=2"], "abc"),
        ([b"a=1", b"__Host-task_session=a.b=c"], "a.b=c"),
        ([b"__Host-task_session="], None),
        ([b"__Host-task_session"], None),
        ([b"x__Host-task_session=abc"], None),
        ([b"__host-task_session=abc"], None),
        ([b"__Host-task_session=abc; __Host-task_session=abc"], None),
        ([b"__Host-task_session=abc", b"__Host-task_session=def"], None),
    ],
)
def test_reading(lines: list[bytes], token: str | None) -> None:
    headers = [(b"host", b"example.org"), *((b"cookie", line) for line in lines)]
    assert login_cookie.read(headers) == token
