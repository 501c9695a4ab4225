"""The step on what is secret or private by its name: keys, logins, results, what belongs to one checkout only.

Names alone decide, so that author and hub say the same and nothing is read. A name that is often given to something
public (`.env.example`, `credentials.py`, `cert.crt`) is none of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from verifiers.hub.package.paths import fold
from verifiers.hub.package.refusal import refuse
from verifiers.hub.package.subject import Step, Subject

_SECRET = re.compile(
    r"\.envrc|\.env(?!.*\.(?:example|sample|template|dist|schema)$)(?:\..*)?"
    r"|[._]netrc|\.pypirc|\.git-credentials|\.pgpass|\.htpasswd"
    r"|(?:application_default_)?credentials(?:\.(?:json|toml|ya?ml|ini|cfg|csv|txt))?"
    r"|(?:client[-_]secret|service[-_]account).*\.json"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)(?!.*\.(?:pub|py|md)$).*"
    r"|.*\.(?:pem|p12|pfx|ppk|jks|keystore|kdbx)"
)
_SECRET_FOLDERS = {".ssh", ".aws", ".gnupg"}
_CHECKOUT = {".git", ".hg", ".svn", ".venv", "__pycache__", "pyvenv.cfg"}
_RESULTS = re.compile(r"(?:.*/)?outputs/(?:evals|train|sft)/.*")


def check_private(subject: Subject) -> None:
    """Nothing in the archive is secret or private by its name."""
    top = f"{subject.root}/" if subject.facts.kind == "sdist" else ""
    below = {fold(member.removeprefix(top)): member for member in subject.sizes}
    for path, member in below.items():
        if (why := _why(path, below)) is not None:
            refuse("private-file", why, member)


def _why(path: str, others: Collection[str]) -> str | None:
    """What a path gives away, None if nothing."""
    *folders, name = path.split("/")
    if _SECRET.fullmatch(name) or not _SECRET_FOLDERS.isdisjoint(folders):
        return "a file of this name holds secrets"
    if not _CHECKOUT.isdisjoint([*folders, name]):
        return "it belongs to a checkout or to its virtual environment"
    results = folders[:1] == ["outputs"] and "outputs/__init__.py" not in others
    return "it lies where runs keep their results" if results or _RESULTS.fullmatch(path) else None


CHECKS: list[Step] = [check_private]
