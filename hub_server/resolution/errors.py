"""What resolution refuses. The message says which constraint excluded what."""

from hub_server.problems import Conflict, Problem


class BadRequirement(Problem):
    """A requirement is not `owner/name` with versions."""

    code = "requirement"
    hint = "Write owner/name, owner/name@1.2 or owner/name>=1.2,<2."


class BadMoment(Problem):
    """The serial or the moment of the request is none of this hub's."""

    code = "moment"
    hint = "Give a serial that the hub has reached, or a moment, not both."


class BadPython(Problem):
    """The Python of the request is no version."""

    code = "python-version"
    hint = "Give a version such as 3.11."


class NoAnswer(Conflict):
    """No releases satisfy all constraints together."""

    code = "no-answer"
    hint = "Loosen a constraint that the message names."


class NameClash(Conflict):
    """Two releases of the answer can not be installed side by side: they share a distribution or an import name."""

    code = "name-clash"
    hint = "Put them into two environments, each with a lock of its own."


class Withdrawn(Conflict):
    """The answer holds a release that was deleted since."""

    code = "withdrawn"
    hint = "Ask without the serial or moment for what takes its place."


class Quarantined(Conflict):
    """A project that is needed is in quarantine, so its files are not offered."""

    code = "quarantined"
    hint = "Ask its owner or the hub's operator why; the project's page gives the reason."


class TooHard(Conflict):
    """The search was given up: too many combinations, or too many releases in one answer."""

    code = "too-hard"
    hint = "Pin some of the ids to exact versions."
