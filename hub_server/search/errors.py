"""What a search refuses."""

from hub_server.problems import Problem


class BadCursor(Problem):
    """`after` is not what an earlier page gave."""

    code = "cursor"
    hint = "Pass `next` of the page before, unchanged, with the same `q`; leave it out for the first page."
