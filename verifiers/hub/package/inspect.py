"""Inspect a wheel or a source archive: every rule, one named step after another, and what the file says of itself.

    facts = inspect_file(path, "my_env-0.1.0-py3-none-any.whl", Policy())

Nothing of the package is imported or run. The first rule that is broken raises RefusedError. A file of an author's
can take long or much memory to look at (its source is parsed): a server does this in a process with limits,
`verifiers.hub.package.worker`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

from verifiers.hub.package import contract, metadata, private_files, project, record, wheel
from verifiers.hub.package.facts import FileFacts, Policy
from verifiers.hub.package.names import (
    SdistName,
    canonical_version,
    check_project,
    has_local_part,
    normalise,
    parse_sdist_name,
    parse_wheel_name,
)
from verifiers.hub.package.refusal import printable, refuse
from verifiers.hub.package.subject import Step, Subject
from verifiers.hub.package.tar_walk import walk_tar
from verifiers.hub.package.zip_walk import walk_zip

_BLOCK = 1 << 20


def inspect_file(path: Path, filename: str, policy: Policy) -> FileFacts:
    """What is known of a file once every rule holds; RefusedError with the first that does not.

    `filename` is what it is to be called: at `path` it may lie under another name.
    """
    is_wheel = filename.endswith(".whl")
    named = parse_wheel_name(filename) if is_wheel else parse_sdist_name(filename)
    facts = FileFacts(filename, "wheel" if is_wheel else "sdist", named.name, version=named.version)
    with path.open("rb") as file:
        subject = Subject(path, file, policy, facts, named)
        try:
            for step in steps(is_wheel, policy):
                step(subject)
        except (RecursionError, MemoryError) as error:  # source of an author's, nested beyond what can be followed
            refuse("inspection-failed", f"it is too deep or too large to be looked at ({type(error).__name__})")
    return facts


def steps(is_wheel: bool, policy: Policy) -> list[Step]:
    """What is done to a file of this kind, in order."""
    chosen = [*NAME_CHECKS, *(WHEEL_CHECKS if is_wheel else SDIST_CHECKS)]
    if policy.environment:
        chosen += WHEEL_ENVIRONMENT_CHECKS if is_wheel else ENVIRONMENT_CHECKS
    return chosen


# --- the name, and the file as such -----------------------------------------------------------------------------


def check_told(subject: Subject) -> None:
    """What the form says is what the file is named."""
    policy, named = subject.policy, subject.named
    if policy.name and normalise(policy.name) != named.name:
        refuse("form", f"the form says {printable(policy.name)!r} as name, the file is named {named.name!r}")
    if policy.version and canonical_version(policy.version) != canonical_version(named.version):
        refuse("form", f"the form says {printable(policy.version)!r} as version, the file {named.version!r}")


def check_local_version(subject: Subject) -> None:
    """A public release is no local one."""
    if not subject.policy.private and has_local_part(subject.named.version):
        refuse("local-version", f"{subject.named.version!r} is a local version")


def check_reserved(subject: Subject) -> None:
    """The name is free of what others import."""
    if subject.policy.environment:
        check_project(subject.named.name)


def hash_file(subject: Subject) -> None:
    """Size and digests, of a file that is not too large."""
    limit = subject.policy.limits.file_bytes
    size = subject.path.stat().st_size
    if size > limit:
        refuse("file-size", f"the file has {size:,} bytes, more than {limit:,}")
    subject.facts.size = size
    subject.facts.sha256, subject.facts.blake2b_256 = _digests(subject.file)


def _digests(file: BinaryIO) -> tuple[str, str]:
    sha256, blake2b = hashlib.sha256(), hashlib.blake2b(digest_size=32)
    file.seek(0)
    while block := file.read(_BLOCK):
        sha256.update(block)
        blake2b.update(block)
    return sha256.hexdigest(), blake2b.hexdigest()


# --- the archive ------------------------------------------------------------------------------------------------


def walk_wheel(subject: Subject) -> None:
    """The ZIP is one that all readers take for the same."""
    listing = walk_zip(subject.file, subject.policy.limits)
    subject.read, subject.digests = listing.read, listing.digests
    subject.tops = {member.name.partition("/")[0] for member in listing.members}
    subject.sizes = {member.name: member.size for member in listing.members if not member.is_dir}


def walk_sdist(subject: Subject) -> None:
    """The TAR is one that all readers take for the same, with one folder at its top."""
    assert isinstance(subject.named, SdistName)
    top = subject.root = subject.named.top
    listing = walk_tar(subject.file, top, subject.policy.limits)
    subject.read = lambda name, _cap: listing.read(name.removeprefix(f"{top}/"))
    subject.sizes = {member.name: member.size for member in listing.members if not member.is_dir}


NAME_CHECKS: list[Step] = [check_told, check_local_version, check_reserved, hash_file]
WHEEL_CHECKS: list[Step] = [
    walk_wheel,
    *wheel.FOLDER_CHECKS,
    *metadata.CHECKS,
    *wheel.CHECKS,
    *record.CHECKS,
]
SDIST_CHECKS: list[Step] = [walk_sdist, *metadata.CHECKS]
ENVIRONMENT_CHECKS: list[Step] = [*private_files.CHECKS, *project.CHECKS]
WHEEL_ENVIRONMENT_CHECKS: list[Step] = [*wheel.ENVIRONMENT_CHECKS, *ENVIRONMENT_CHECKS, *contract.CHECKS]
