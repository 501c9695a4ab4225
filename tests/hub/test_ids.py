import pytest

from verifiers.errors import ConfigError
from verifiers.hub.ids import HubId, is_hub_id, parse_id


@pytest.mark.parametrize(
    ("text", "read", "shown"),
    [
        ("alice/demo", HubId("alice", "demo"), "alice/demo"),
        ("alice/demo@latest", HubId("alice", "demo"), "alice/demo"),
        ("alice/My_Env@v1.0.0", HubId("alice", "my-env", "==1.0.0"), "alice/my-env@1.0.0"),
        ("alice/demo>=1, <2", HubId("alice", "demo", "<2,>=1"), "alice/demo<2,>=1"),
        ("alice/demo ==1.*", HubId("alice", "demo", "==1.*"), "alice/demo==1.*"),
    ],
)
def test_ids_are_read_in_every_form(text, read, shown):
    """A version pins, bounds bound, nothing is latest, and names take their normal form."""
    assert parse_id(text) == read
    assert str(read) == shown


@pytest.mark.parametrize("text", ["demo", "a/b/c", "alice/demo@", "alice/demo@one", "alice/demo>=x", "/demo", ""])
def test_what_is_no_id_is_refused_with_the_form_of_one(text):
    """The hint shows how an id is written."""
    with pytest.raises(ConfigError) as refused:
        parse_id(text)
    assert "OWNER/NAME" in refused.value.hint


def test_only_a_pin_is_a_version():
    """Bounds and wildcards leave the choice to the hub."""
    assert parse_id("a/b@1.0").version == "1.0"
    assert [parse_id(text).version for text in ("a/b", "a/b>=1", "a/b==1.*", "a/b==1,<2")] == [None] * 4


def test_folders_are_no_ids():
    """What starts with a dot, a slash or a tilde is a path; a bare name is local."""
    assert is_hub_id("alice/demo@1.0")
    assert not any(map(is_hub_id, ("./alice/demo", "/alice/demo", "~/demo", "demo", "demo@1.0", "a/b/c.toml")))
