"""Read the documentation's pages: their code blocks, and what a comment above a block says about it.

An HTML comment on the line above a fence gives directions that a reader of the rendered page does not see:

    <!-- file: NAME -->     the block is the content of this file; it is written where the page's commands run
    <!-- checked: WHY -->   not run, for this reason; its commands are still checked as far as that goes
    <!-- exit: CODE -->     the last command of the block ends with this exit code
    <!-- hub: OWNER -->     the page's commands find a hub that runs, and act as this owner of it

No test here: `docs_runner` runs blocks, `test_pages` collects them.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent.parent
DIRECTION = re.compile(r"<!--\s*(file|checked|exit|hub):\s*(.+?)\s*-->")


GENERATED = "<!-- Written by docs/generate.py"


@dataclass(frozen=True)
class Block:
    """One fenced code block of a page."""

    page: Path
    line: int
    language: str
    text: str
    directions: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """`page:line`, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every Markdown page that users read, the README first; cards of environments included."""
    root_pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    cards = sorted(ROOT.glob("environments/*/README.md"))
    return [
        *root_pages,
        *sorted((ROOT / "docs").rglob("*.md")),
        *cards,
        *sorted(ROOT.glob("benchmarks/*.md")),
    ]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found: list[Block] = []
    directions: dict[str, str] = {}
    for token in MarkdownIt().parse(page.read_text()):
        if token.type == "html_block":
            directions |= dict(DIRECTION.findall(token.content))
        elif token.type == "fence":
            assert token.map is not None
            found.append(Block(page, token.map[0] + 1, token.info.strip(), token.content, directions))
            directions = {}
        elif token.nesting >= 0 and token.type not in ("inline", "paragraph_close"):
            directions = {}
    return found
