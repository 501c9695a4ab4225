"""The laws of what a token allows: no token makes a wider one, and more scopes or patterns never allow less."""

import datetime as dt

import pytest
from hypothesis import given, strategies as st

from hub_server.accounts.errors import BadPattern
from hub_server.accounts.patterns import check_pattern, covers, matches
from hub_server.accounts.service import SCOPES, Principal
from hub_server.accounts.tokens import what_is_wider

SLUGS = st.text("ab-", min_size=1, max_size=5)
GLOBS = st.text("ab-*", min_size=1, max_size=5)
PATTERNS = st.builds("{}/{}".format, GLOBS, GLOBS)
SCOPE_SETS = st.frozensets(st.sampled_from(SCOPES), min_size=1)
PATTERN_LISTS = st.lists(PATTERNS, max_size=4).map(tuple)
ENDS = st.none() | st.integers(1, 9).map(lambda day: dt.datetime(2030, 1, day, tzinfo=dt.UTC))


def principal(scopes, patterns, expires_at=None):
    return Principal(1, "a", "t", frozenset(scopes), tuple(patterns), expires_at)


@given(SCOPE_SETS, PATTERN_LISTS, ENDS, SCOPE_SETS, PATTERN_LISTS, ENDS, SLUGS, st.none() | SLUGS)
def test_no_derived_token_allows_what_its_parent_does_not(
    scopes, patterns, ends, new_scopes, new_patterns, new_ends, owner, name
):
    """Whatever is accepted as no wider allows nothing more, nowhere, and not for longer."""
    parent, child = principal(scopes, patterns, ends), principal(new_scopes, new_patterns, new_ends)
    if what_is_wider(parent, sorted(new_scopes), new_patterns, new_ends) is not None:
        return
    for scope in SCOPES:
        assert parent.allows(scope) or not child.allows(scope)
        assert parent.allows(scope, owner, name) or not child.allows(scope, owner, name)
    assert ends is None or (new_ends is not None and new_ends <= ends)


@given(SCOPE_SETS, PATTERN_LISTS, ENDS)
def test_a_token_can_make_one_like_itself(scopes, patterns, ends):
    """The rule refuses what is wider, not what is equal."""
    own = principal(scopes, patterns, ends)
    assert what_is_wider(own, sorted(scopes), patterns, ends) is None


@given(SCOPE_SETS, SCOPE_SETS, PATTERN_LISTS, PATTERN_LISTS, SLUGS, st.none() | SLUGS)
def test_allows_is_monotone(scopes, more_scopes, patterns, more_patterns, owner, name):
    """More scopes, more patterns, and no patterns at all never allow less."""
    small = principal(scopes, patterns)
    large = principal(scopes | more_scopes, patterns + more_patterns if patterns else ())
    everywhere = principal(scopes, ())
    for scope in SCOPES:
        if small.allows(scope, owner, name):
            assert large.allows(scope, owner, name)
            assert everywhere.allows(scope, owner, name)


@given(SCOPE_SETS, PATTERN_LISTS, SLUGS, SLUGS)
def test_what_is_allowed_on_an_owner_is_allowed_on_each_project(scopes, patterns, owner, name):
    """A question without a name is about the owner with all that it has."""
    asked = principal(scopes, patterns)
    for scope in SCOPES:
        if asked.allows(scope, owner):
            assert asked.allows(scope, owner, name)


@given(PATTERNS, PATTERNS, SLUGS, SLUGS)
def test_a_pattern_covers_only_what_it_matches(outer, inner, owner, name):
    """If the outer pattern covers the inner one, it matches all that the inner one does."""
    project = f"{owner}/{name}"
    if covers(outer, inner) and matches(inner, project):
        assert matches(outer, project)


@pytest.mark.parametrize(
    ("pattern", "project", "right"),
    [
        ("alice/*", "alice/my-env", True),
        ("alice/my-*", "alice/my-env", True),
        ("alice/my-*", "alice/other", False),
        ("*/my-env", "bob/my-env", True),
        ("*/*", "bob/my-env", True),
        ("alice/my-env", "alice/my-env-2", False),
        ("alice/*", "alice/my/env", False),
        ("a.ice/*", "alice/env", False),
    ],
)
def test_a_star_is_any_characters_but_a_slash(pattern, project, right):
    """Everything else stands for itself."""
    assert matches(pattern, project) is right


@pytest.mark.parametrize("text", ["", "alice", "alice/", "/x", "Alice/x", "alice/x?", "a/b/c", "alice/[x]", "a/b\n"])
def test_what_is_no_pattern_is_refused(text):
    """Other wildcards, other cases and other shapes are refused when a token is made."""
    with pytest.raises(BadPattern):
        check_pattern(text)


def test_a_pattern_of_many_stars_is_matched_at_once():
    """A hundred stars cost no more than one."""
    assert not matches("*" * 100 + "/" + "*a" * 12, "a" * 100 + "/" + "a" * 24 + "b")
