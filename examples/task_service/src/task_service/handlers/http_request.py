"""The handler `http_request`: sends one HTTP request to a public address and logs the response.

:mod:`task_service.handlers.outbound` refuses internal addresses. This module follows redirects: every request connects to
a checked address, with the name in `Host`, SNI and the certificate check. Only GET and HEAD follow redirects, at most five,
never from https to http, and without the task's headers to another origin. Proxies and credentials in the service's
environment are not used.
"""

from __future__ import annotations

import codecs
import re
from typing import Annotated, ClassVar, Literal

from httpx2 import URL, HTTPError, InvalidURL, Request, Response
from pydantic import Field, SecretStr, field_validator

from msk_auth.errors import InputInvalid

from .base import Handler, HandlerEnvironment, HandlerParams, HandlerResult, RunContext
from .outbound import OutboundPolicy, OutboundRefused, host_of, parse_url, port_of, send

MAX_LOGGED_BODY = 64 * 1024
"""The most bytes of a response's body that are read and logged."""
MAX_REDIRECTS = 5

_FOLLOWING = frozenset({"GET", "HEAD"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

# RFC 9110, sections 5.1 and 5.5; obsolete non-ASCII values are refused.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]{0,8192}")
# Hop-by-hop fields (RFC 9110, section 7.6.1), and those that determine the request's destination and framing.
_RESERVED_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class HttpRequestParams(HandlerParams):
    """The request to send."""

    url: Annotated[
        str,
        Field(
            max_length=8192,
            title="URL",
            description="Begins with http:// or https://.",
        ),
    ]
    method: Annotated[
        Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"],
        Field(description="The request's method."),
    ] = "GET"
    headers: Annotated[
        dict[str, SecretStr],
        Field(max_length=64, default_factory=dict, description="Header fields to send."),
    ]
    body: Annotated[str | None, Field(description="The request's content, sent as UTF-8.")] = None

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        parse_url(value)
        return value

    @field_validator("headers")
    @classmethod
    def _headers(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        seen: set[str] = set()
        for name, secret in value.items():
            content = secret.get_secret_value()
            if _HEADER_NAME.fullmatch(name) is None:
                raise ValueError("A header name may contain only letters, digits and hyphens.")
            if name.lower() in _RESERVED_HEADERS:
                raise ValueError(f"The service sets the header {name}. Remove it.")
            if name.lower() in seen:
                raise ValueError(f"The header {name} appears twice. Send it once.")
            if _HEADER_VALUE.fullmatch(content) is None or content != content.strip():
                raise ValueError(
                    f"The value of the header {name} must be printable ASCII of at most 8192 characters."
                )
            seen.add(name.lower())
        return value


class HttpRequest(Handler[HttpRequestParams]):
    """Sends one request. Succeeds with a status below 400, exit code 0; otherwise the exit code is the status.

    Attributes:
        policy: The addresses that may be reached.
    """

    name: ClassVar[str] = "http_request"
    title: ClassVar[str] = "HTTP request"
    description: ClassVar[str] = (
        "Sends an HTTP request to a public address and logs the response. Succeeds with any status below 400."
    )
    Params = HttpRequestParams

    def __init__(self, environment: HandlerEnvironment) -> None:
        super().__init__(environment)
        self.policy = OutboundPolicy(environment.allowed_networks)

    async def check(self, params: HttpRequestParams) -> None:
        """Refuse an internal address immediately. A name is resolved and checked at the time of the run."""
        try:
            self.policy.check_literal(parse_url(params.url))
        except OutboundRefused as refusal:
            raise InputInvalid.of("params.url", str(refusal)) from None

    async def run(self, params: HttpRequestParams, context: RunContext) -> HandlerResult:
        """See :meth:`Handler.run`. The run's timeout bounds a slow response."""
        try:
            return await self._send(params, context)
        except OutboundRefused as refusal:
            return HandlerResult(error=str(refusal))
        except (HTTPError, InvalidURL) as error:
            # The runner masks the secrets in it before it cuts the text off.
            detail = " ".join(str(error).split()) or "no details"
            return HandlerResult(error=f"The request failed ({type(error).__name__}): {detail}")

    async def _send(self, params: HttpRequestParams, context: RunContext) -> HandlerResult:
        url = parse_url(params.url)
        headers = {name: value.get_secret_value() for name, value in params.headers.items()}
        if context.traceparent is not None:
            headers = {"traceparent": context.traceparent} | headers
        body = None if params.body is None else params.body.encode()
        for _ in range(MAX_REDIRECTS + 1):
            request = _request(params.method, url, headers, body)
            context.check_lease()
            context.log("system", f"{params.method} {url}\n")
            async with send(self.policy, request, url) as response:
                context.log("system", f"{response.status_code} {response.reason_phrase}\n")
                target = _redirect_target(params.method, url, response)
                if target is None:
                    await _log_body(response, context)
                    return _outcome(response)
            if _origin(target) != _origin(url):
                # The headers may contain credentials for the first origin.
                headers = {}
            body = None
            url = target
        return HandlerResult(error=f"There were more than {MAX_REDIRECTS} redirects.")


def _request(method: str, url: URL, headers: dict[str, str], body: bytes | None) -> Request:
    # Uncompressed, so that a small response cannot expand into a large one. The task's own headers take precedence.
    fields = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "task-service"}
    fields |= {name.lower(): value for name, value in headers.items()}
    fields["host"] = url.netloc.decode("ascii")
    return Request(method, url, headers=fields, content=body)


def _origin(url: URL) -> tuple[str, str, int]:
    return url.scheme, host_of(url), port_of(url)


def _redirect_target(method: str, url: URL, response: Response) -> URL | None:
    """The URL that the response redirects to; None if it is the final response."""
    location = response.headers.get("location")
    if method not in _FOLLOWING or response.status_code not in _REDIRECTS or location is None:
        return None
    target = parse_url(str(url.join(location)))
    if url.scheme == "https" and target.scheme == "http":
        raise OutboundRefused(
            "The response redirects from https to http. If that is intended, use the final URL."
        )
    return target


async def _log_body(response: Response, context: RunContext) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    left = MAX_LOGGED_BODY
    async for chunk in response.aiter_raw():
        context.log("stdout", decoder.decode(chunk[:left]))
        left -= len(chunk)
        if left < 0:
            context.log(
                "system", f"\nOnly the first {MAX_LOGGED_BODY} bytes of the response were read.\n"
            )
            return
    context.log("stdout", decoder.decode(b"", final=True))


def _outcome(response: Response) -> HandlerResult:
    if response.status_code < 400:
        return HandlerResult(exit_code=0)
    error = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
    return HandlerResult(exit_code=response.status_code, error=error)
