"""The documentation is code: every block of every page runs, every link leads somewhere."""

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.process import Service
from docs_pages import GENERATED, ROOT, Block, blocks, pages
from docs_runner import COMMANDS, Session, page_environment
from tests.support.hub import running_hub
from tests.support.namespaces import need_namespaces
from verifiers.rollouts.workers.wheels import our_source

TORCH = re.compile(r"^import torch$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def page_parameters() -> list[object]:
    """The pages that hold blocks, marked by what they run: the embedded model, torch, or training or a hub (slow)."""
    found = []
    for page in pages():
        content = blocks(page)
        local = any("-m local" in block.text for block in content if block.language == "console")
        marks = [pytest.mark.local] if local else []
        trains = any("$ vf-train" in block.text and "checked" not in block.directions for block in content)
        if trains or any("hub" in block.directions for block in content):
            marks.append(pytest.mark.slow)
        marks += [pytest.mark.train] if TORCH.search("\n".join(block.text for block in content)) else []
        if content:
            found.append(pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks))
    return found


@pytest.fixture(scope="module")
def endpoint():
    """The base URL of a loopback chat endpoint that answers every request at once."""
    with Service([sys.executable, "-m", "benchmarks.endpoint"]) as service:
        yield service.first_line


@pytest.fixture
def hub_of_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], dict[str, str]]]:
    """Starts a hub that serves this SDK and has an owner; the variables by which commands find it."""
    folder = tmp_path_factory.mktemp("hub")
    with running_hub(folder / "data") as hub:

        def serve(owner: str) -> dict[str, str]:
            sdk = asyncio.run(our_source().wheel(folder / "sdk"))
            assert hub.admin("add-sdk", sdk).returncode == 0
            kept = {"VF_CACHE_DIR": str(folder / "cache"), "VF_CREDENTIALS": str(folder / "credentials.toml")}
            return {"VF_HUB_URL": hub.url, "VF_HUB_TOKEN": hub.owner(name=owner).token, **kept}

        yield serve


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", page_parameters())
def test_every_block_runs(
    page: Path, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The blocks of a page run in order, and commands print what the page shows."""
    if request.node.get_closest_marker("train"):
        pytest.importorskip("torch")
    if page.stem == "sandboxes":
        need_namespaces()
    env = page_environment(os.environ, endpoint)
    owner = next((block.directions["hub"] for block in blocks(page) if "hub" in block.directions), None)
    if owner is not None:
        env |= request.getfixturevalue("hub_of_pages")(owner)
    session = Session(tmp_path, env)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for folder in (tmp_path / "environments").iterdir():
        monkeypatch.syspath_prepend(str(folder))
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, env[name])
    for block in blocks(page):
        session.run(block)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link names a file of the repository, and its anchor a heading of that file."""
    for target in LINK.findall(page.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.relative_to(ROOT)} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.relative_to(ROOT)} links to {target}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, formed as code hosts form them."""
    headings = re.findall(r"^#+\s+(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_reasons_are_given_for_blocks_that_do_not_run() -> None:
    """A block that is only checked says why in a sentence of at least three words."""
    silent = [
        block.place for block in all_blocks() if len(block.directions.get("checked", "a b c").split()) < 3
    ]
    assert silent == []


def test_commands_are_shown_in_console_blocks() -> None:
    """No page hides a command of ours in a block that is not run."""
    hidden = [
        block.place
        for block in all_blocks()
        if block.language not in ("console", "python")
        for line in block.text.splitlines()
        if line.removeprefix("$ ").startswith(COMMANDS)
    ]
    assert hidden == []


def all_blocks() -> list[Block]:
    """Every block of every page that is written by hand."""
    written = (page for page in pages() if not page.read_text().startswith(GENERATED))
    return [block for page in written for block in blocks(page)]
