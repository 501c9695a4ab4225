"""A README as HTML that may stand on a page of the hub, whoever wrote it.

Markdown is rendered by markdown-it and then cleaned by nh3, which keeps a list of tags and nothing that runs, loads or
looks like the page itself: no script, style, class, id, form or picture. A link leads to another site and says that
the hub does not vouch for it. Anything but Markdown is shown as it is written.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

MAX_RENDERED = 64 << 10
"""Characters of Markdown that are rendered: the worst of them take a second or two. A longer README is shown as it is
written."""
TAGS = set(
    "a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i kbd li ol p pre q s samp span "
    "strong sub summary sup table tbody td th thead tr ul var".split()
)
_LEVELS_BELOW = 2
"""A README's first heading stands below the page's own two."""


@lru_cache(maxsize=256)
def readme_html(text: str, content_type: str | None) -> Markup:
    """HTML of a README. `content_type` is what the metadata say: text/markdown, text/plain or text/x-rst."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind != "text/markdown" or len(text) > MAX_RENDERED:
        return Markup('<pre class="plain" tabindex="0">{}</pre>').format(text)
    clean = nh3.clean(
        _render(text),
        tags=TAGS,
        attributes={"a": {"href", "title"}, "ol": {"start"}},
        clean_content_tags={"script", "style", "title", "textarea", "iframe", "noscript"},
        link_rel="nofollow ugc noopener",
        url_schemes={"http", "https", "mailto"},
        url_relative="deny",
    )
    return Markup(clean)  # noqa: S704 - nh3 has cleaned it


def _render(text: str) -> str:
    """HTML as the author means it: not safe yet."""
    markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    markdown.add_render_rule("image", _picture)
    tokens = markdown.parse(text)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + _LEVELS_BELOW)}"
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def _picture(_renderer: RendererHTML, tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
    """A picture is told by its text: loading it would tell another site who reads this page."""
    return html.escape(tokens[index].content or "picture")
