"""What the addresses of indexes and files mean."""

import pytest
from hypothesis import given, strategies as st

from hub_server.simple_index.addresses import FileAddress, IndexAddress, parse

DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("/simple/", IndexAddress(None, None, None, True)),
        ("/simple", IndexAddress(None, None, None, False)),
        ("/simple/my-env/", IndexAddress(None, None, "my-env", True)),
        ("/simple/simple/", IndexAddress(None, None, "simple", True)),
        ("/alice/simple/", IndexAddress("alice", None, None, True)),
        ("/alice/simple/my-env/", IndexAddress("alice", None, "my-env", True)),
        ("/alice/my-env/simple/numpy", IndexAddress("alice", "my-env", "numpy", False)),
        ("/alice/my-env/full/simple/numpy/", IndexAddress("alice", "my-env", "numpy", True, full=True)),
        (f"/files/alice/my-env/{DIGEST}/a.whl", FileAddress("alice", "my-env", DIGEST, "a.whl", False)),
        (
            f"/files/alice/my-env/{DIGEST}/a.whl.metadata",
            FileAddress("alice", "my-env", DIGEST, "a.whl", True),
        ),
        ("/", None),
        ("/alice", None),
        ("/alice/my-env", None),
        ("/alice/my-env/1.0/simple/", None),
        ("/api/v1/simple/my-env/", None),
        ("/simple/my-env/x/", None),
        ("/files/alice/my-env/a.whl", None),
        ("/legacy/", None),
    ],
)
def test_an_address_has_one_meaning(path, address):
    """Indexes of the hub, of owners and of packages, files and their METADATA; everything else is for other routes."""
    assert parse(path) == address


NAMES = st.text("abAB01-_.", min_size=1, max_size=12)


@given(
    NAMES,
    st.sampled_from(["/simple/", "/alice/simple/", "/alice/my-env/simple/", "/alice/my-env/full/simple/"]),
)
def test_every_spelling_leads_to_the_one_that_is_served(name, start):
    """A redirect ends after one step, at an address of the same index."""
    for spelling in (f"{start}{name}", f"{start}{name}/"):
        address = parse(spelling)
        path = address.normal_path()
        if path is None:
            assert not address.is_normal
            continue
        assert path.startswith(start)
        assert parse(path).is_normal
        assert address.is_normal is (spelling == path)


@given(st.text("/ab-.%é\x00", max_size=40) | st.text(max_size=30))
def test_no_path_is_an_error(text):
    """Whatever is asked for, reading the address raises nothing."""
    for path in (text, f"/{text}", f"/simple/{text}", f"/alice/{text}/simple/{text}", f"/files/{text}/b/c/d"):
        address = parse(path)
        if isinstance(address, IndexAddress):
            to = address.normal_path()
            assert address.is_normal or to is None or (to.isascii() and not to.startswith("//"))


@pytest.mark.parametrize(
    "path",
    ["//evil.com/simple/Foo", "//evil.com/simple", "//a/full/simple/A_B", "//simple/A_B", "/%/simple/A_B"],
)
def test_nobody_is_sent_to_another_host(path):
    """A location that begins with two slashes would name one."""
    assert parse(path).normal_path() is None
