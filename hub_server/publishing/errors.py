"""What publishing refuses, beside the rules for files (`verifiers.hub.package.refusal`)."""

from hub_server.problems import Conflict, NotFound, Problem, Unavailable

WITH_HINT = "Publish a new version; a bad one is yanked, not replaced: hub yank."


class FileExists(Problem):
    """There is a file of that name with other bytes. The words are what uv and twine look for."""

    code = "file-exists"
    hint = WITH_HINT


class Tombstone(Problem):
    """The version was deleted; its number and its file names stay taken."""

    code = "deleted-version"
    hint = "Publish under a new version number. To undo a release without losing its number, yank it: hub yank."


class Closed(Problem):
    """The project or the release takes no more files."""

    code = "closed"
    hint = "Publish a new version."


class ProjectArchived(Problem):
    """Archived and quarantined projects take no uploads (PEP 792)."""

    code = "project-closed"
    hint = "An admin of the owner can make it active again."


class ProjectFull(Problem):
    """All files of a project together would be too large."""

    code = "project-size"
    hint = "Delete old versions that nobody uses, or ask whoever runs the hub for more room."


class BadForm(Problem):
    """The upload form is not one that uv or twine send."""

    code = "form"
    hint = "Upload with uv publish, twine or hub push."


class TooLarge(Problem):
    """The file or the form has more bytes than the hub takes."""

    code = "too-large"
    hint = "Keep data outside of the package, and load it from where it is published."


class WrongDigest(Problem):
    """What arrived is not what was sent."""

    code = "digest"
    hint = "Send the file again."


class Disagreement(Problem):
    """The files of one release contradict each other."""

    code = "files-disagree"
    hint = "Build the wheel and the source archive from one folder: hub push does."


class NoSpace(Unavailable):
    """The disk or the database can take nothing now."""

    code = "no-space"
    hint = "Whoever runs the hub must make room; then send the file again."


class InspectorsBusy(Unavailable):
    """Too many uploads are being inspected."""

    code = "inspectors-busy"
    hint = "Send the file again in a while. Whoever runs the hub can give it more HUB_INSPECTORS."


class VisibilityDiffers(Conflict):
    """A project is made public or private by its admins, not by a release."""

    code = "visibility-differs"
    hint = "Leave --visibility out; hub visibility changes a project."


class SessionOpen(Conflict):
    """Another session for this version is open; `Location` names it."""

    code = "session-open"
    hint = "Go on with the session that Location names, or abort it (DELETE)."


class SessionIncomplete(Conflict):
    """Some of the promised bytes are not here."""

    code = "session-incomplete"
    hint = "Send the files that are named, from the offset that HEAD tells, and publish again."


class WrongOffset(Conflict):
    """The bytes do not begin where those that are here end."""

    code = "wrong-offset"
    hint = "Go on at the offset in Upload-Offset."


class NoSession(NotFound):
    """No such upload session, or not an open one."""

    code = "no-session"
    hint = "Open a session again: hub push does."
