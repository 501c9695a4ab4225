"""Ranges of a file."""

import pytest
from hypothesis import given, strategies as st

from hub_server.simple_index.ranges import Span, UnsatisfiableError, parse_range


@pytest.mark.parametrize(
    ("header", "span"),
    [
        (None, None),
        ("bytes=0-0", Span(0, 1)),
        ("bytes=2-", Span(2, 10)),
        ("bytes=-3", Span(7, 10)),
        ("bytes=-300", Span(0, 10)),
        ("bytes=3-300", Span(3, 10)),
        ("BYTES=1-2", Span(1, 3)),
        ("bytes=-", None),
        ("bytes=5-3", None),
        ("bytes=0-1,4-5", None),
        ("items=0-1", None),
        ("bytes=a-b", None),
        ("bytes=+1-2", None),
        ("bytes=1-2x", None),
    ],
)
def test_one_range_or_the_whole(header, span):
    """A single range is a span; whatever else is asked, the whole file."""
    assert parse_range(header, 10) == span


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-12", "bytes=-0", f"bytes={10**17}-"])
def test_beyond_the_end_is_unsatisfiable(header):
    """No byte of the file is in the range."""
    with pytest.raises(UnsatisfiableError):
        parse_range(header, 10)


@given(st.integers(1, 50), st.integers(0, 60), st.integers(0, 60))
def test_a_range_is_a_slice(size, first, last):
    """A satisfiable range is exactly the bytes that the header counts, both ends included."""
    content = bytes(range(size))
    wanted = content[first : last + 1]
    try:
        span = parse_range(f"bytes={first}-{last}", size)
    except UnsatisfiableError:
        assert wanted == b""
        return
    assert content if span is None else content[span.start : span.end] == (content if last < first else wanted)


@given(st.text(max_size=30), st.integers(0, 100))
def test_no_header_is_an_error(text, size):
    """Nonsense never raises anything but the refusal."""
    try:
        span = parse_range("bytes=" + text, size)
    except UnsatisfiableError:
        return
    assert span is None or 0 <= span.start < span.end <= size
