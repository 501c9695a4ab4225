"""What looking after projects refuses."""

from hub_server.problems import Conflict, Denied, Problem


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
