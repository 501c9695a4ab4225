"""The search for an answer, against trying everything on small universes."""

import itertools
import random

import pytest
from hypothesis import example, given, settings, strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from hub_server.resolution.errors import NoAnswer, TooHard
from hub_server.resolution.requirements import parse_requirement
from hub_server.resolution.search import Candidate, Search

PROJECTS = ["oo/a", "oo/b", "oo/c", "oo/d"]
VERSIONS = ["1", "2", "3"]
SPECIFIERS = ["==1", "==2", ">=2", "<2", "!=3", "", ">=4"]


class Plain:
    """A universe of dictionaries: project → version → what it needs."""

    def __init__(self, releases):
        self.releases = {
            project: [
                Candidate(
                    project, Version(version), version,
                    tuple(parse_requirement(need, f"{project}@{version}") for need in sorted(needs)),
                )
                for version, needs in sorted(versions.items(), key=lambda pair: Version(pair[0]), reverse=True)
            ]
            for project, versions in releases.items()
        }  # fmt: skip

    def offer(self, project, asker):
        return self.releases.get(project, [])

    def passed_over(self, project):
        return []


def answer(releases, wanted):
    """The versions that the search takes by project; None where it refuses."""
    try:
        found = Search([parse_requirement(text) for text in wanted], Plain(releases)).run()
    except NoAnswer:
        return None
    return {project: candidate.shown for project, candidate in found.items()}


def split(text):
    return text[:4], SpecifierSet(text[4:])


def is_answer(releases, wanted, chosen):
    """Whether a choice satisfies every constraint and holds nothing that nobody needs."""
    needed, open_needs = set(), list(wanted)
    while open_needs:
        project, specifier = split(open_needs.pop())
        if project not in chosen or chosen[project] not in specifier:
            return False
        if project not in needed:
            needed.add(project)
            open_needs += releases[project][chosen[project]]
    return needed == set(chosen)


def rank(releases, wanted, chosen):
    """The versions in the order of decision: asked for first, then what the taken ones need, each by id."""
    asked = {split(text)[0] for text in wanted}
    known, order = set(asked), []
    while open_projects := known - {project for project, _ in order}:
        project = min(open_projects, key=lambda one: (one not in asked, one))
        order.append((project, Version(chosen[project])))
        known |= {split(need)[0] for need in releases[project][chosen[project]]}
    return [version for _, version in order]


def by_trying_everything(releases, wanted):
    """The oracle: every choice of a version or none for every project; the highest that is an answer."""
    choices = [[None, *releases.get(project, {})] for project in PROJECTS]
    found = []
    for picked in itertools.product(*choices):
        chosen = {project: version for project, version in zip(PROJECTS, picked, strict=True) if version}
        if is_answer(releases, wanted, chosen):
            found.append(chosen)
    if not found:
        return None
    best = found[0]
    for other in found[1:]:
        pairs = zip(rank(releases, wanted, other), rank(releases, wanted, best), strict=False)
        higher = next((one > two for one, two in pairs if one != two), False)
        best = other if higher else best
    return best


def needs(most, specifiers, **more):
    one = st.builds("".join, st.tuples(st.sampled_from(PROJECTS), st.sampled_from(specifiers)))
    return st.lists(one, max_size=most, unique_by=lambda text: text[:4], **more)


releases_of_one = st.dictionaries(st.sampled_from(VERSIONS), needs(2, SPECIFIERS), min_size=1, max_size=3)
universes = st.fixed_dictionaries(dict.fromkeys(PROJECTS, releases_of_one))

# What only some mistakes of the search get wrong: who excluded a version is forgotten; so is whom a need excludes; what
# is needed is decided before what is asked for.
FORGOTTEN = {"oo/a": {"1": [], "2": ["oo/d==1"]}, "oo/c": {"2": []}, "oo/d": {"1": ["oo/c==1"], "2": []}}
EXCLUDED = {"oo/a": {"1": [], "2": []}, "oo/b": {"1": ["oo/a==1"]}}
ORDER = {"oo/a": {"1": [], "2": ["oo/c==1"]}, "oo/b": {"1": ["oo/a"]}, "oo/c": {"1": [], "2": []}}


@example(FORGOTTEN, ["oo/a", "oo/c", "oo/d"], random.Random(1))
@example(EXCLUDED, ["oo/a", "oo/b"], random.Random(1))
@example(ORDER, ["oo/b", "oo/c"], random.Random(1))
@settings(max_examples=150)
@given(universes, needs(4, ["", "", "<3"], min_size=2), st.randoms())
def test_the_answer_is_the_highest_of_all_in_whatever_order_it_is_asked_for(releases, wanted, shuffler):
    """The search finds what trying everything finds, and refuses exactly where there is nothing."""
    found = answer(releases, wanted)
    assert found == by_trying_everything(releases, wanted)
    shuffled = shuffler.sample(wanted, len(wanted))
    again = {
        project: dict(shuffler.sample(sorted(found_.items()), len(found_))) for project, found_ in releases.items()
    }
    assert answer(again, shuffled) == found


def test_a_conflict_far_away_is_found_without_trying_what_has_no_part_in_it():
    """Twenty projects of twenty versions lie between two that contradict each other."""
    releases = {f"oo/m{number:02}": {str(version): [] for version in range(20)} for number in range(20)}
    releases["oo/a"] = {"1": ["oo/base<2"], "2": ["oo/base>=2"]}
    releases["oo/z"] = {"1": ["oo/base<2"]}
    releases["oo/base"] = {"1": [], "2": []}
    found = answer(releases, list(releases))
    assert found is None or found["oo/a"] == "1"
    assert answer(releases, [one for one in releases if one != "oo/base"])["oo/a"] == "1"


def test_a_search_that_never_ends_is_given_up(monkeypatch):
    """A universe made to be hard costs a bounded number of comparisons."""
    monkeypatch.setattr("hub_server.resolution.search.MAX_CHECKS", 2000)
    count = 9  # of nine projects no two may have one version, and there are eight versions
    releases = {
        f"oo/{number}": {
            str(version): [f"oo/{other}!={version}" for other in range(count) if other != number]
            for version in range(1, count)
        }
        for number in range(count)
    }
    with pytest.raises(TooHard):
        Search([parse_requirement(text) for text in releases], Plain(releases)).run()


def test_a_refusal_names_the_constraints_that_contradict_each_other():
    """Who needs what, and what that excludes, by id."""
    releases = {"oo/a": {"1": ["oo/c>=2"]}, "oo/b": {"1": ["oo/c<2"]}, "oo/c": {"1": [], "2": []}}
    with pytest.raises(NoAnswer) as refused:
        Search([parse_requirement("oo/a"), parse_requirement("oo/b")], Plain(releases)).run()
    assert "oo/a@1 needs oo/c>=2 and oo/b@1 needs oo/c<2, but there is 2, 1" in refused.value.message
