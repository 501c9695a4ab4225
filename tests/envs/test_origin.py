import json
from importlib import metadata

import pytest

from verifiers.envs.origin import hub_origin

DIGEST = "ab" * 32
URL = f"https://hub.example/base/files/alice/demo/{DIGEST}/demo-1.0-py3-none-any.whl"


@pytest.fixture
def installed(tmp_path):
    """Makes the metadata of a distribution, with a `direct_url.json` if one is given."""

    def make(told=None):
        folder = tmp_path / "demo-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        if told is not None:
            (folder / "direct_url.json").write_text(json.dumps(told))
        return metadata.Distribution.at(folder)

    return make


@pytest.mark.parametrize("archive", [{}, {"hash": f"sha256={DIGEST}"}, {"hashes": {"sha256": DIGEST}}])
def test_a_wheel_of_a_hub_says_which_one(installed, archive):
    """uv notes the address, which holds the digest; pip notes the digest too."""
    origin = hub_origin(installed({"url": URL, "archive_info": archive}))
    assert (origin.hub, origin.id, origin.sha256) == ("https://hub.example/base", "alice/demo@1.0", DIGEST)


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {"url": "file:///work/demo", "dir_info": {"editable": True}},
        {"url": "https://files.example/demo-1.0-py3-none-any.whl", "archive_info": {"hash": f"sha256={DIGEST}"}},
        {"url": URL, "archive_info": {"hash": "sha256=" + "cd" * 32}},
    ],
)
def test_anything_else_comes_from_no_hub(installed, told):
    """An index, a folder, another server, an address that contradicts the digest that was verified."""
    assert hub_origin(installed(told)) is None
