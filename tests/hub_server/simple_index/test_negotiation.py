"""Which form a client gets for what it accepts."""

import pytest
from hypothesis import given, strategies as st

from hub_server.simple_index.negotiation import Form, accepts_gzip, negotiate

UV = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01"  # uv 0.13
)
PIP = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1, text/html; q=0.01"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (UV, Form.JSON),
        (PIP, Form.JSON),
        (BROWSER, Form.PLAIN_HTML),
        (None, Form.PLAIN_HTML),
        ("", Form.PLAIN_HTML),
        ("application/vnd.pypi.simple.latest+json", Form.JSON),
        ("application/vnd.pypi.simple.latest+html", Form.HTML),
        ("application/vnd.pypi.simple.v1+json;q=0.2, text/html;q=0.3", Form.PLAIN_HTML),
        ("application/vnd.pypi.simple.v1+json;q=0", None),
        ("application/vnd.pypi.simple.v1+json;q=0, */*;q=0.1", Form.HTML),
        ("*/*", Form.JSON),
        ("text/*", Form.PLAIN_HTML),
        ("application/json", None),
        ("application/vnd.pypi.simple.v2+json", None),
        ("TEXT/HTML ; Q=0.5", Form.PLAIN_HTML),
        ("text/html;q=nan", None),
        ("text/html;q=2", None),
    ],
)
def test_the_best_acceptable_form(accept, form):
    """Qualities count; JSON is the best of equals; nothing acceptable is None."""
    assert negotiate(accept, b"") is form


@pytest.mark.parametrize(
    ("query", "form"),
    [
        (b"format=application/vnd.pypi.simple.v1%2Bjson", Form.JSON),
        (b"format=application/vnd.pypi.simple.v1+json", Form.JSON),
        (b"format=text/html", Form.PLAIN_HTML),
        (b"format=image/png", None),
        (b"other=1", Form.PLAIN_HTML),
    ],
)
def test_the_query_names_a_form(query, form):
    """`?format=` wins over the header, also with an unescaped plus."""
    assert negotiate("text/html", query) is form


WEIGHTS = st.integers(0, 1000).map(lambda number: number / 1000)


@given(st.dictionaries(st.sampled_from([form.value for form in Form]), WEIGHTS, min_size=1), st.randoms())
def test_no_other_form_is_weighted_higher(weights, random):
    """Whatever the order, the form has the highest weight; with every weight at 0 there is none."""
    items = [f"{name};q={weight:g}" for name, weight in weights.items()]
    random.shuffle(items)
    form = negotiate(", ".join(items), b"")
    if form is None:
        assert max(weights.values()) == 0
    else:
        assert weights[form.value] == max(weights.values()) > 0


@given(st.text(max_size=60))
def test_no_header_is_an_error(text):
    """Nonsense is answered like anything that is not acceptable."""
    assert negotiate(text, b"") in (*Form, None)
    assert accepts_gzip(text) in (True, False)


@pytest.mark.parametrize(
    ("header", "accepted"),
    [("gzip, deflate, br", True), ("*", True), ("gzip;q=0, *", False), ("br", False), (None, False), ("", False)],
)
def test_gzip_is_for_those_who_take_it(header, accepted):
    """An encoding is used only where it is named or covered by a star, and not at quality 0."""
    assert accepts_gzip(header) is accepted
