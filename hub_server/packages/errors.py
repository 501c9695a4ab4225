"""What showing projects and looking after them refuses."""

from hub_server.problems import Conflict, Denied, NotFound, Problem


class TooLateToDelete(Conflict):
    """The release has been there too long, or somebody has it already."""

    code = "too-late-to-delete"
    hint = "Yank it instead: installers pass it over, and who pinned it still gets it. hub yank ID --reason TEXT"


class LocalVersions(Conflict):
    """A project with local versions can not become public."""

    code = "local-version"
    hint = "Delete these releases, or publish the package under another name."


class NotPlain(Conflict):
    """The plain name of the whole-hub index can not be given as asked."""

    code = "plain-name"
    hint = "The project that has the name gives it to a public project of the same name of another owner."


class OnlyTheHub(Denied):
    """Quarantine is set and lifted by the hub's admins."""

    code = "quarantine"
    hint = "Ask an admin of the hub. An owner may archive or deprecate a project, or yank its releases."


class NoReason(Problem):
    """A project that is set aside says why."""

    code = "no-reason"
    hint = "Say why: --reason TEXT. It is shown to everybody who meets the project."


class NoWheel(NotFound):
    """The release has no wheel, or its project is in quarantine, so there is nothing to look into."""

    code = "no-wheel"
    hint = "hub info shows the files of a release."


class NoSuchFile(NotFound):
    """The wheel holds no such file."""

    code = "no-such-file"
    hint = "hub inspect OWNER/NAME@VERSION lists the files."


class NotText(Problem):
    """The file is not text, or not in UTF-8."""

    status = 415
    code = "not-text"
    hint = "Download the wheel, or get the source: hub pull."


class MemberTooLarge(Problem):
    """The file is larger than what is shown."""

    status = 413
    code = "member-too-large"
    hint = "Download the wheel, or get the source: hub pull."


class TooLargeToCompare(Conflict):
    """The wheels hold more than what is compared on the hub."""

    code = "too-large-to-compare"
    hint = "Download both wheels and compare them there."
