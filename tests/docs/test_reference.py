"""The reference pages say what the code says."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import verifiers
from docs_pages import ROOT
from verifiers import errors

REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """The generator, which is a script and no package."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_fresh(generate: ModuleType) -> None:
    """The generated pages are what `make docs` would write now."""
    assert generate.stale() == [], "run `make docs`"


def test_every_public_name_is_documented() -> None:
    """Each name of `verifiers.__all__` has an entry in the API reference or in the one of errors."""
    text = (REFERENCE / "api.md").read_text() + (REFERENCE / "errors.md").read_text()
    missing = [name for name in verifiers.__all__ if not re.search(rf"(### {name}\n|`{name}`)", text)]
    assert missing == []


def test_every_error_has_a_hint_and_an_exit_code() -> None:
    """Each class of the tree says what to do next and how a command ends."""
    for name, cls in vars(errors).items():
        if isinstance(cls, type) and issubclass(cls, errors.Error):
            assert cls.hint.strip(), name
            assert isinstance(cls.exit_code, errors.ExitCode), name


def test_every_variable_of_the_code_is_documented(generate: ModuleType) -> None:
    """Each `VF_…` variable that the package reads by name is on the settings page."""
    page = (REFERENCE / "settings.md").read_text()
    for path in sorted((ROOT / "verifiers").rglob("*.py")):
        for name in set(re.findall(r"\bVF_[A-Z][A-Z_]+\b", path.read_text())):
            assert f"`{name}`" in page, f"{path.relative_to(ROOT)} reads {name}"


def test_every_key_of_a_record_is_documented() -> None:
    """Each field of a saved record and of the metadata is on the page of file formats."""
    page = (REFERENCE / "file-formats.md").read_text()
    from verifiers.types.results import RolloutOutput

    missing = [
        name for name in RolloutOutput.__annotations__ if not name.startswith("_") and f"`{name}`" not in page
    ]
    assert missing == []


def test_links_to_issues_name_their_repository() -> None:
    """A reference to an issue says whose it is: `repository#number`, never a bare number."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        bare = re.findall(r"(?<![\w/#&])#\d{2,}", page.read_text())
        assert bare == [], f"{Path(page).relative_to(ROOT)} names {bare}"


def test_every_setting_of_training_says_what_it_is_for() -> None:
    """No row of the page has an empty meaning."""
    rows = [line for line in (REFERENCE / "train-config.md").read_text().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if not row.split("|")[4].strip()] == []
