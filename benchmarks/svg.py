"""Just enough SVG: elements as text, and the frame around every chart, readable on light and on dark."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

WIDTH = 760
FONT = 13

# A page of the documentation has its own switch between light and dark.
_LIGHT = (
    "--ink:#1f2328;--faint:#d0d7de;--soft:#59636e;--a:#0b63c5;--b:#b3400a;--c:#1a7f37;--d:#8250df;"
)
_DARK = (
    "--ink:#e6edf3;--faint:#3d444d;--soft:#9198a1;--a:#6cb6ff;--b:#f69d50;--c:#57d364;--d:#dcbdfb;"
)
_STYLE = f"""
[data-md-color-scheme=default] svg.benchmark{{{_LIGHT}}}
[data-md-color-scheme=slate] svg.benchmark{{{_DARK}}}
svg.benchmark text{{font:{FONT}px system-ui,sans-serif;fill:var(--ink)}}
svg.benchmark .heading{{font-weight:600}}
svg.benchmark .soft{{fill:var(--soft)}}
svg.benchmark .grid{{stroke:var(--faint)}}
svg.benchmark .spread{{stroke:var(--ink);stroke-width:1.5}}
svg.benchmark .aim{{stroke:var(--ink);stroke-width:2;stroke-dasharray:3 2}}
svg.benchmark .bar-0{{fill:var(--a)}}
svg.benchmark .bar-1{{fill:var(--soft)}}
svg.benchmark .line{{fill:none;stroke-width:2}}
"""
COLOURS = ("var(--ink)", "var(--a)", "var(--b)", "var(--c)", "var(--d)")
DASHES = ("6 3", "", "2 3", "8 3 2 3", "12 4", "4 4")


def element(name: str, content: str = "", **attributes: object) -> str:
    """An element around content that is markup already; `_` in a name of an attribute stands for `-`."""
    pairs = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(_text(value))}"
        for key, value in attributes.items()
    )
    return f"<{name}{pairs}>{content}</{name}>" if content else f"<{name}{pairs}/>"


def label(content: str, x: float, y: float, *, anchor: str = "start", class_: str = "") -> str:
    """A text that ends, begins or is centred at a place."""
    extra = {"class_": class_} if class_ else {}
    return element("text", escape(content), x=x, y=y, text_anchor=anchor, **extra)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def document(name: str, title: str, description: str, parts: list[str], height: float) -> str:
    """The whole picture, with its title and a description for readers who do not see it."""
    content = "\n".join(
        [
            element("title", escape(title), id=f"{name}-title"),
            element("desc", escape(description), id=f"{name}-desc"),
            f"<style>{_STYLE}</style>",
            *parts,
        ]
    )
    picture = element(
        "svg",
        f"\n{content}\n",
        xmlns="http://www.w3.org/2000/svg",
        class_="benchmark",
        viewBox=f"0 0 {WIDTH} {_text(height)}",
        width="100%",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )
    return picture + "\n"


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
