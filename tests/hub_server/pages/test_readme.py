"""READMEs on the hub's pages: nothing of a stranger's runs, loads or pretends."""

import re

import pytest

from hub_server.pages.readme import MAX_RENDERED, TAGS, readme_html

EVIL = {
    "script": "<script>alert(1)</script>",
    "script in a script": "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "handler": '<img src="x" onerror="alert(1)">',
    "handler on a kept tag": '<details open ontoggle="alert(1)"><summary onclick=alert(1)>x</summary></details>',
    "svg": '<svg onload="alert(1)"><script>alert(1)</script></svg>',
    "javascript link": "[x](javascript:alert(1))",
    "javascript link, spelt otherwise": "[x](JaVaScRiPt&#58;alert(1)) <a href=' javascript:alert(1)'>y</a>",
    "javascript reference": "[x]\n\n[x]: javascript:alert(1)",
    "vbscript": '<a href="vbscript:msgbox(1)">x</a>',
    "data link": '<a href="data:text/html,<script>alert(1)</script>">x</a>',
    "style": "<style>body { display: none }</style>",
    "style attribute": '<p style="position:fixed;inset:0">cover</p>',
    "class and id": '<div class="mark good" id="main">verified</div>',
    "form": '<form action="https://evil.example"><input name="q"><button>Log in</button></form>',
    "frame": '<iframe src="https://evil.example"></iframe><object data="x"></object><embed src="x">',
    "picture": "![a](https://evil.example/pixel.png) <img src='https://evil.example/p.png'>",
    "base and meta": '<base href="https://evil.example"><meta http-equiv="refresh" content="0;url=https://evil.example">',
    "math": '<math><mi xlink:href="javascript:alert(1)">x</mi></math>',
    "end of the block": "</div></section></main><script>alert(1)</script>",
    "comment": "<!-- --><script>alert(1)</script>",
    "template": "<template><script>alert(1)</script></template><noscript><p title='</noscript><script>alert(1)'>",
    "code that looks like a tag": "`<script>alert(1)</script>`\n\n    <b onclick=alert(1)>",
}


@pytest.mark.parametrize("case", EVIL)
@pytest.mark.parametrize("kind", ["text/markdown", "text/plain", "text/x-rst", None, "text/html"])
def test_nothing_runs_loads_or_pretends(case: str, kind: str | None) -> None:
    """Whatever its type says, only kept tags remain, with no attribute but those of links and lists."""
    shown = str(readme_html(EVIL[case], kind))
    tags = re.findall(r"<(/?)([a-zA-Z][^\s/>]*)((?:\"[^\"]*\"|'[^']*'|[^>\"'])*)>", shown)
    assert {name for _, name, _ in tags} <= TAGS
    for _, name, rest in tags:
        allowed = {"a": {"href", "title", "rel"}, "ol": {"start"}, "pre": {"class", "tabindex"}}.get(name, set())
        assert set(re.findall(r"([\w-]+)=", re.sub(r'"[^"]*"', '""', rest))) <= allowed
    assert not re.search(r"href=\"(?!https?:|mailto:)", shown)


def test_markdown_is_rendered() -> None:
    """Headings below the page's own, lists, tables, code, links that say they are a stranger's."""
    text = "# Title\n\nA [link](https://example.org) and `code`.\n\n|a|b|\n|-|-|\n|1|2|\n\n```\nx = 1 < 2\n```"
    shown = str(readme_html(text, "text/markdown; charset=UTF-8; variant=GFM"))
    assert "<h3>Title</h3>" in shown and "<td>1</td>" in shown
    assert '<a href="https://example.org" rel="nofollow ugc noopener">link</a>' in shown
    assert "<pre><code>x = 1 &lt; 2\n</code></pre>" in shown


def test_relative_links_lead_nowhere() -> None:
    """A link to a file of the author's repository, or to a route of this hub, is text."""
    shown = str(readme_html("[x](docs/a.md) [y](/api/v1/whoami) [z](//evil.example)", "text/markdown"))
    assert "href" not in shown and ">x</a>" in shown


def test_pictures_are_told_by_their_text() -> None:
    """A badge in a link keeps the link and its text; no picture is loaded."""
    shown = str(readme_html('[![tests "pass"](https://a.example/b.svg)](https://ci.example)', "text/markdown"))
    assert shown == '<p><a href="https://ci.example" rel="nofollow ugc noopener">tests "pass"</a></p>\n'


@pytest.mark.parametrize("kind", ["text/plain", "text/x-rst", None])
def test_other_types_are_shown_as_written(kind: str | None) -> None:
    """Text is text."""
    assert str(readme_html("a < b\n====", kind)) == '<pre class="plain" tabindex="0">a &lt; b\n====</pre>'


def test_a_long_readme_is_not_rendered() -> None:
    """1.5 MiB of Markdown, or of what is slow to parse, is shown as it is written."""
    long = "[" * (MAX_RENDERED + 1)
    assert str(readme_html(long, "text/markdown")).startswith("<pre")


@pytest.mark.parametrize("piece", ["[", "![a", "[a](", "> ", "- ", "`", "* a\n  ", "|a\n-|-\n", "<div>\n", "&#"])
def test_markdown_made_to_be_slow_ends(piece: str) -> None:
    """The longest text that is rendered ends, whatever it repeats."""
    assert readme_html(piece * (MAX_RENDERED // len(piece)), "text/markdown")
