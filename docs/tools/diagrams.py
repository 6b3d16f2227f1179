"""The diagrams of the documentation, drawn by this code into the page.

All are 360 units wide: a phone shows them at their own size, so that no text is smaller than 12 pixels. They have no colours of
their own: `assets/site.css` gives their classes those of the palette that the reader chose.

A page says `<!-- drawn: request -->` where a diagram belongs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from html import escape
from typing import Final, Literal, TypeAlias

from benchmarks import result
from docs.tools import benchmarks_page, layers

WIDTH: Final = 360

_MARKER: Final = re.compile(r"<!-- drawn: ([a-z]+) -->")
_MIDDLE: Final = WIDTH / 2

Frame: TypeAlias = Literal["box", "box bad", "core", "bound", "bound bad"]
"""The classes of a box, as `assets/site.css` has them."""

Ink: TypeAlias = Literal["text", "muted", "badtext"]
Anchor: TypeAlias = Literal["start", "middle", "end"]


class Drawing:
    """A picture as it grows.

    Args:
        name: Of the marker; ids begin with it, as several pictures may be in one page.
        title: What it shows, in a few words.
        description: What it says, for readers who do not see it.
        height: In the units of the picture.
    """

    def __init__(self, name: str, title: str, description: str, height: int) -> None:
        self._name = name
        self._parts = [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
                f' aria-labelledby="{name}-title {name}-desc">'
            ),
            f'<title id="{name}-title">{escape(title)}</title>',
            f'<desc id="{name}-desc">{escape(description)}</desc>',
            (
                f'<defs><marker id="{name}-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
                ' markerHeight="8" orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
            ),
        ]

    def text(
        self, x: float, y: float, words: str, *, anchor: Anchor = "middle", kind: Ink = "text"
    ) -> None:
        """A line of text on the base line `y`. Muted text is smaller as well."""
        style = "" if kind == "text" else f'class="{kind}" '
        self._parts.append(
            f'<text {style}x="{x:g}" y="{y:g}" font-size="{12 if kind == "muted" else 13}"'
            f' text-anchor="{anchor}">{escape(words)}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        words: str,
        note: str = "",
        *,
        kind: Frame = "box",
        height: float = 0,
    ) -> None:
        """A box with words in its middle, and a note below them."""
        height = height or (46 if note else 34)
        self.frame(x, y, width, height, kind=kind)
        middle = y + height / 2 + 5
        self.text(x + width / 2, middle - (8 if note else 0), words)
        if note:
            self.text(x + width / 2, middle + 9, note, kind="muted")

    def frame(
        self, x: float, y: float, width: float, height: float, *, kind: Frame = "bound"
    ) -> None:
        """An empty box; `bound` is a dashed line around what belongs together."""
        self._parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5"/>'
        )

    def arrow(self, *points: tuple[float, float]) -> None:
        """A line through the points, with a head at the last one."""
        self._parts.append(
            f'<path class="line" d="{_path(points)}" stroke-width="1.4" marker-end="url(#{self._name}-head)"/>'
        )

    def boundary(self, *points: tuple[float, float]) -> None:
        """A dashed line through the points."""
        self._parts.append(f'<path class="bound" d="{_path(points)}" stroke-width="1.2"/>')

    def figure(self) -> str:
        """The picture as a part of a page."""
        return (
            '<figure class="diagram drawn">\n' + "\n".join([*self._parts, "</svg>"]) + "\n</figure>"
        )


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:g} {y:g}" for x, y in points)


def request() -> str:
    """From the header of a request to the principal, and past the policy of the route."""
    drawing = Drawing(
        "request",
        "How a request becomes a principal",
        "One Authorization header is read. What begins with the prefix of a key goes through form, record and digest, and a JWT"
        " through signature, claims and session. Both lead to the owner, with the permissions of this moment, and to a principal"
        " that remembers its kind. The policy of the route lets it pass to the route, or refuses it with 401 or 403.",
        474,
    )
    drawing.box(80, 4, 200, "Authorization: Bearer …")
    drawing.arrow((130, 38), (89, 76))
    drawing.arrow((230, 38), (271, 76))
    drawing.text(92, 58, "msk_…", anchor="end", kind="muted")
    drawing.text(268, 58, "a JWT", anchor="start", kind="muted")
    drawing.box(4, 78, 170, "An API key", "form, record, digest")
    drawing.box(186, 78, 170, "A login token", "signature, claims, session")
    drawing.arrow((89, 124), (140, 162))
    drawing.arrow((271, 124), (220, 162))
    drawing.box(80, 164, 200, "The owner", "permissions as they are now")
    drawing.arrow((_MIDDLE, 210), (_MIDDLE, 240))
    drawing.box(80, 242, 200, "Principal", "owner, kind, permissions", kind="core")
    drawing.arrow((_MIDDLE, 288), (_MIDDLE, 318))
    drawing.frame(20, 320, 320, 66)
    drawing.text(_MIDDLE, 338, "The policy of the route")
    drawing.text(_MIDDLE, 357, "require(…) takes any kind", kind="muted")
    drawing.text(_MIDDLE, 375, "require_interactive(…) takes a person's login", kind="muted")
    drawing.arrow((120, 386), (89, 422))
    drawing.arrow((240, 386), (271, 422))
    drawing.box(4, 424, 170, "Your route", "gets the principal")
    drawing.box(186, 424, 170, "A problem document", "401 or 403, and why", kind="box bad")
    return drawing.figure()


def revocation() -> str:
    """From the call that revokes to the moment from which nothing accepts the key."""
    drawing = Drawing(
        "revocation",
        "How a revocation takes effect everywhere",
        "revoke_key checks that a person logged in. The store commits the revocation, which is final. After the commit the register"
        " says how long the longest lease is, and the call waits that long. Then it returns. From then on each new request with"
        " the key gets 401 in every process, and what is open ends within two seconds.",
        474,
    )
    drawing.box(60, 4, 240, "revoke_key(…)", "a person's login, and no key")
    drawing.arrow((_MIDDLE, 50), (_MIDDLE, 80))
    drawing.box(60, 82, 240, "The store commits", "no later write takes it back")
    drawing.arrow((_MIDDLE, 128), (_MIDDLE, 158))
    drawing.box(60, 160, 240, "The register is read", "how long is the longest lease?")
    drawing.arrow((_MIDDLE, 206), (_MIDDLE, 236))
    drawing.box(60, 238, 240, "The call waits that long", "what was cached before has ended")
    drawing.arrow((_MIDDLE, 284), (_MIDDLE, 314))
    drawing.box(60, 316, 240, "revoke_key returns", kind="core")
    drawing.arrow((130, 350), (89, 388))
    drawing.arrow((230, 350), (271, 388))
    drawing.box(4, 390, 170, "A new request", "401 in every process")
    drawing.box(186, 390, 170, "What is open", "ends within 2 seconds")
    drawing.text(_MIDDLE, 460, "No message is sent to other processes.", kind="muted")
    return drawing.figure()


def lease() -> str:
    """Why waiting one lease is enough. Time runs downwards."""
    drawing = Drawing(
        "lease",
        "Why waiting one lease is enough",
        "Time runs downwards. A process notes the time, reads the record, and may use what it read until that time plus the lease."
        " Another process commits a revocation, waits for the longest lease and a margin, and returns. A read that began before the"
        " commit has a lease that ends before the return. A read that began after the commit sees the revocation.",
        366,
    )
    drawing.text(4, 16, "A process verifies", anchor="start")
    drawing.text(184, 16, "Another one revokes", anchor="start")
    drawing.boundary((4, 110), (356, 110))
    drawing.boundary((4, 284), (356, 284))
    drawing.arrow((12, 28), (12, 336))
    drawing.arrow((192, 28), (192, 336))
    drawing.text(24, 48, "notes the time, reads", anchor="start", kind="muted")
    drawing.box(24, 58, 144, "may use", "what it read", kind="core", height=120)
    drawing.text(24, 196, "The lease ends.", anchor="start", kind="muted")
    drawing.text(204, 102, "commits", anchor="start", kind="muted")
    drawing.box(204, 118, 148, "waits", "longest lease, a margin", height=158)
    drawing.text(204, 304, "revoke_key returns", anchor="start")
    drawing.text(24, 304, "reads again: 401", anchor="start")
    drawing.text(_MIDDLE, 358, "Below the second line no process accepts the key.", kind="muted")
    return drawing.figure()


def window() -> str:
    """What a stolen key can do while it is being revoked. Time runs downwards."""
    drawing = Drawing(
        "window",
        "What a stolen key can do while it is being revoked",
        "Time runs downwards. On the left keys may make keys, and a deletion takes seconds to spread: in these seconds the deleted key"
        " still works, makes a new key, and the thief keeps access. On the right, with this library, the stolen key asks for a new key"
        " and gets 403 while it is being revoked, and after the call has returned it gets 401 everywhere.",
        378,
    )
    drawing.text(4, 16, "Keys can make keys,", anchor="start")
    drawing.text(4, 34, "a deletion takes seconds", anchor="start")
    drawing.text(184, 16, "With this library", anchor="start")
    drawing.arrow((12, 46), (12, 346))
    drawing.arrow((192, 46), (192, 346))
    drawing.box(24, 56, 144, "the key is deleted")
    drawing.frame(24, 98, 144, 108, kind="bound bad")
    drawing.text(96, 122, "It still works.", kind="badtext")
    drawing.box(32, 140, 128, "thief: create key", "201", kind="box bad", height=52)
    drawing.box(24, 226, 144, "thief: use new key", "200", kind="box bad", height=52)
    drawing.box(204, 56, 148, "revoke_key is called")
    drawing.frame(204, 98, 148, 76)
    drawing.text(278, 122, "at most one lease", kind="muted")
    drawing.text(278, 152, "create key: 403")
    drawing.box(204, 182, 148, "revoke_key returns", kind="core")
    drawing.text(278, 246, "create key: 401")
    drawing.text(278, 268, "any request: 401")
    drawing.text(4, 370, "The thief stays.", anchor="start", kind="badtext")
    drawing.text(184, 370, "The thief is out.", anchor="start")
    return drawing.figure()


def boundaries() -> str:
    """Where trust ends: the network, the application, the database."""
    drawing = Drawing(
        "boundaries",
        "Trust boundaries",
        "Clients on the network are people with a browser, programs with a key, and attackers; nothing of theirs is believed. A"
        " boundary around the application holds the adapter, the authenticator, the routes, the users, and the secrets. A second"
        " boundary around the database holds key records and the audit log, and no secret.",
        468,
    )
    drawing.frame(4, 4, 352, 92)
    drawing.text(14, 22, "The network: nothing is believed", anchor="start", kind="muted")
    for x, words, note in ((12, "A person", "login token"), (128, "A program", "API key")):
        drawing.box(x, 34, 104, words, note)
    drawing.box(244, 34, 104, "An attacker", "anything", kind="box bad")
    drawing.frame(4, 126, 352, 222)
    drawing.text(
        14, 340, "The application: the pepper, the signing keys", anchor="start", kind="muted"
    )
    drawing.arrow((64, 80), (76, 148))
    drawing.arrow((180, 80), (104, 148))
    drawing.arrow((296, 80), (134, 150))
    drawing.box(20, 152, 120, "Adapter", "translates")
    drawing.arrow((140, 175), (206, 175))
    drawing.box(210, 144, 130, "Authenticator", "decides", kind="core", height=62)
    drawing.arrow((226, 206), (96, 250))
    drawing.box(20, 254, 110, "Your routes", "get a principal")
    drawing.arrow((252, 206), (210, 250))
    drawing.box(148, 254, 110, "Your users", "find_owner")
    drawing.arrow((312, 206), (312, 394))
    drawing.frame(4, 364, 352, 100)
    drawing.text(14, 382, "The database: no secret", anchor="start", kind="muted")
    drawing.box(20, 398, 130, "Audit log", "who did what")
    drawing.box(210, 398, 130, "Key records", "digests, no values")
    return drawing.figure()


def layer_rows() -> str:
    """The layers of the library, from the import contract: one row for each, the outermost on top."""
    return draw_layers(layers.of_this_project())


def draw_layers(rows: list[list[str]]) -> str:
    """The picture of some layers.

    Args:
        rows: The modules of each layer, the outermost first.
    """
    described = "; ".join(", ".join(row) for row in rows)
    bottom = len(rows) * 44
    drawing = Drawing(
        "layers",
        "The layers of msk_auth",
        f"From the outermost to the innermost: {described}.",
        bottom + 30,
    )
    drawing.arrow((14, 8), (14, bottom + 4))
    for number, row in enumerate(rows):
        width = (WIDTH - 34 - 10 * (len(row) - 1)) / len(row)
        for place, module in enumerate(row):
            kind: Frame = "core" if module == "core" else "box"
            drawing.box(30 + place * (width + 10), number * 44 + 4, width, module, kind=kind)
    drawing.text(4, bottom + 24, "imports point downwards only", anchor="start", kind="muted")
    return drawing.figure()


def verification() -> str:
    """What one verification in process costs."""
    return _chart("verification", "Microseconds of one verification, in process")


def authoritative() -> str:
    """What one verification that reads a database costs."""
    return _chart("authoritative", "Microseconds of one verification that reads a database")


def service() -> str:
    """How many requests the task service answers beside a bare FastAPI application."""
    return _chart("service", "Requests in a second", "who am I, ", column="rate")


def _chart(name: str, title: str, beginning: str = "", *, column: str = "time") -> str:
    """A bar for each row of a result that has an aim, and for what the row is compared with, which has a plain bar.

    Args:
        name: Of the result.
        title: Stands above the bars.
        beginning: Of the groups that are shown, behind the title.
        column: Of the figures.
    """
    prefix = f"{title}, {beginning}" if beginning else ""
    rows = [row for row in benchmarks_page.read(name).rows if row.group.startswith(prefix)]
    compared = {row.against for row in rows if row.aim is not None}
    bars: list[tuple[str, float, Frame]] = [
        (
            f"{row.group.removeprefix(prefix)}: {row.name}",
            row.cells[column].median,
            "core" if row.against else "box",
        )
        for row in rows
        if row.aim is not None or row.name in compared
    ]
    described = "; ".join(f"{label}: {result.number(value)}" for label, value, _ in bars)
    drawing = Drawing(name, title, f"{described}.", 24 + 42 * len(bars))
    drawing.text(4, 16, title, anchor="start", kind="muted")
    longest = max(value for _, value, _ in bars)
    for place, (label, value, kind) in enumerate(bars):
        top = 24 + 42 * place
        width = max(2, (WIDTH - 70) * value / longest)
        drawing.text(4, top + 14, label, anchor="start")
        drawing.frame(4, top + 20, width, 14, kind=kind)
        drawing.text(width + 10, top + 32, result.number(value), anchor="start", kind="muted")
    return drawing.figure()


DRAWN: Final[dict[str, Callable[[], str]]] = {
    "authoritative": authoritative,
    "boundaries": boundaries,
    "layers": layer_rows,
    "lease": lease,
    "request": request,
    "revocation": revocation,
    "service": service,
    "verification": verification,
    "window": window,
}
"""From the name in a marker to what draws it."""


def inline(markdown: str) -> str:
    """The page with every diagram drawn in it.

    Raises:
        KeyError: A marker names no diagram.
    """
    return _MARKER.sub(lambda match: DRAWN[match[1]](), markdown)
