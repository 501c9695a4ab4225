"""Steps on METADATA of a wheel and PKG-INFO of a source archive: core metadata 1.0 to 2.6.

The fields are read and checked by `packaging`, one by one, so that a release of it that knows fewer of them still
does. What a newer minor version of the specification adds is passed over with a remark.
"""

from __future__ import annotations

import re
from collections import Counter
from urllib.parse import urlsplit

from packaging.metadata import Metadata, parse_email
from packaging.requirements import Requirement

from verifiers.hub.package.names import LONG_NUMBER, canonical_version, normalise
from verifiers.hub.package.refusal import printable, refuse
from verifiers.hub.package.subject import LINE_ENDS, Step, Subject

MAX_METADATA = 4 << 20
"""Bytes. The README is in it."""

KNOWN = frozenset("1.0 1.1 1.2 2.1 2.2 2.3 2.4 2.5 2.6".split())
NEWEST = (2, 6)
BEFORE_DYNAMIC = frozenset("1.0 1.1 1.2 2.1".split())
"""Versions in which a source archive does not say which of its fields are made when it is built."""

_ONCE = frozenset(
    "metadata-version name version summary requires-python license license-expression description "
    "description-content-type keywords author author-email".split()
)
MAX_HEADERS, MAX_NAMES = 10_000, 200
"""Headers, and different ones of them. The parser takes time for each of the second for each of the first."""
_MOST = {"summary": 512, "requires_python": 512}
"""Characters of what an index shows for every release."""
_HEADER = re.compile(r"([!-9;-~]+):|[ \t]")
_MAIL = frozenset(("mime-version", "content-type", "content-transfer-encoding"))
"""Headers that would have a reader of mails decode what follows."""
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_HASH = re.compile(r"(?:^|&)sha(?:256=[0-9a-f]{64}|384=[0-9a-f]{96}|512=[0-9a-f]{128})(?:&|\Z)")


def member_of(subject: Subject) -> str:
    """Where the metadata is."""
    return f"{subject.root}/{'METADATA' if subject.facts.kind == 'wheel' else 'PKG-INFO'}"


# --- the file ---------------------------------------------------------------------------------------------------


def read_metadata(subject: Subject) -> None:
    """It is there, as UTF-8 text."""
    member = member_of(subject)
    if member not in subject.sizes:
        refuse("metadata-missing", f"there is no {member}", member)
    subject.facts.metadata_text = subject.text(member, MAX_METADATA, "metadata-text")


def check_headers(subject: Subject) -> None:
    """Every line before the first empty one is a header or continues one, for any reader of such files.

    Readers go on differently after one that is not: what is a requirement to one is description to another.
    """
    member = member_of(subject)
    head = re.split(r"\r?\n\r?\n", subject.facts.metadata_text, maxsplit=1)[0]
    names: Counter[str] = Counter()
    for ended in head.removesuffix("\n").removesuffix("\r").split("\n"):
        line = ended.removesuffix("\r")
        found = _HEADER.match(line)
        name = found[1] if found else None
        if found is None or LINE_ENDS.search(line) or (name is None and not names):
            refuse("metadata-text", f"a line is no header: {printable(line)[:80]!r}", member)
        if name is not None:
            names[name.lower()] += 1
    if mail := names.keys() & _MAIL:
        refuse("metadata-text", f"{min(mail).title()} is a header of mails, not of metadata", member)
    if names.total() > MAX_HEADERS or len(names) > MAX_NAMES:
        refuse("metadata-text", f"there are more than {MAX_HEADERS:,} headers, or {MAX_NAMES} different ones", member)


def read_fields(subject: Subject) -> None:
    """What the headers say."""
    subject.told, subject.unread = parse_email(subject.facts.metadata_text)


def check_metadata_version(subject: Subject) -> None:
    """Its version of the specification is one that we can read."""
    told = subject.told.get("metadata_version", "")
    found = re.fullmatch(r"([0-9]{1,3})\.([0-9]{1,3})", told)
    newer_minor = found is not None and int(found[1]) == NEWEST[0] and int(found[2]) > NEWEST[1]
    if told not in KNOWN and not newer_minor:
        what = f"Metadata-Version is {printable(told)!r}" if told else "there is no Metadata-Version"
        refuse("metadata-version", f"{what}; 1.0 to 1.2 and 2.1 to 2.6 are known", member_of(subject))
    if newer_minor:
        subject.remark("metadata-newer", f"Metadata-Version is {told}; fields newer than 2.6 are passed over")
    if subject.facts.kind == "sdist" and told in BEFORE_DYNAMIC:
        subject.remark("metadata-older", f"Metadata-Version is {told}: the wheel's metadata may say other things")
    subject.facts.metadata_version = told


def check_fields(subject: Subject) -> None:
    """Every field that is known has a valid value, and what may be said once is said once."""
    member = member_of(subject)
    for name in subject.unread:
        if name.lower() in _ONCE:
            refuse("metadata-field", f"{name.title()} is there more than once, or is no text", member)
    for name in ("name", "version"):
        if not subject.told.get(name):
            refuse("metadata-field", f"there is no {name.title()}", member)
    fields = Metadata.from_raw(subject.told, validate=False)
    for name in subject.told:
        if name != "metadata_version":
            try:
                getattr(fields, name)
            except ValueError as error:  # InvalidMetadata, or a number that Python does not read
                refuse("metadata-field", printable(str(error)), member)
    for name, most in _MOST.items():
        if len(str(subject.told.get(name, ""))) > most:
            refuse("metadata-field", f"{name.replace('_', '-')} is longer than {most} characters", member)
    if LONG_NUMBER.search(subject.told.get("requires_python", "")):
        refuse("metadata-field", "requires-python has a number that is too large for installers", member)


# --- name and version -------------------------------------------------------------------------------------------


def check_name(subject: Subject) -> None:
    """The name is that of the file, however it is spelt."""
    told = subject.told["name"]
    subject.facts.display_name = told
    if normalise(told) != subject.named.name:
        what = f"Name is {printable(told)!r}, the file is named {subject.named.name!r}"
        refuse("metadata-name", what, member_of(subject))


def check_version(subject: Subject) -> None:
    """The version is that of the file."""
    told = subject.told["version"]
    if canonical_version(told) != canonical_version(subject.named.version):
        what = f"Version is {printable(told)!r}, the file is named {subject.named.version!r}"
        refuse("metadata-release", what, member_of(subject))


# --- requirements -----------------------------------------------------------------------------------------------


def read_requirements(subject: Subject) -> None:
    """What it requires, with the requirements that name an address apart."""
    subject.requirements = [Requirement(text) for text in subject.told.get("requires_dist", [])]
    for one in subject.requirements:
        if LONG_NUMBER.search(f"{one.specifier} {one.marker or ''}"):
            refuse("metadata-field", f"{one.name} is required with a number that is too large", member_of(subject))
    subject.facts.requires_dist = list(subject.told.get("requires_dist", []))
    subject.facts.direct_urls = [str(one) for one in subject.requirements if one.url]


def check_direct_urls(subject: Subject) -> None:
    """A requirement on an address names exact bytes: a full commit, or an archive with its hash."""
    for one in subject.requirements:
        if one.url and (wrong := unpinned(one.url)):
            refuse("direct-url", f"{printable(str(one))} {wrong}", member_of(subject))


def unpinned(url: str) -> str:
    """Why an address does not name exact, public bytes; empty where it does."""
    try:
        parts = urlsplit(url)
        secret = parts.password is not None
    except ValueError:
        return "is no address"
    if secret:
        return "holds a password"
    if parts.scheme in ("git+https", "git+ssh"):
        _, _, commit = parts.path.rpartition("@")
        return "" if _COMMIT.match(commit) else "names no full commit (40 hexadecimal digits)"
    if parts.scheme == "https":
        return "" if _HASH.search(parts.fragment) else "has no hash (#sha256=…)"
    return "is neither https, git+https nor git+ssh"


# --- licences, and the rest -------------------------------------------------------------------------------------


def check_license_files(subject: Subject) -> None:
    """From version 2.4 on each License-File is in the archive (PEP 639)."""
    if subject.facts.metadata_version in KNOWN and subject.facts.metadata_version < "2.4":
        return
    folder = f"{subject.root}/licenses" if subject.facts.kind == "wheel" else subject.root
    for path in subject.told.get("license_files", []):
        if f"{folder}/{path}" not in subject.sizes:
            refuse("license-file", f"License-File {printable(path)} is not in the archive", f"{folder}/{path}")


def read_facts(subject: Subject) -> None:
    """What the page of a release shows."""
    told, facts = subject.told, subject.facts
    facts.requires_python = told.get("requires_python") or None
    facts.summary = told.get("summary") or None
    facts.license = told.get("license_expression") or told.get("license") or None
    facts.keywords = [word for word in told.get("keywords", []) if word]
    facts.classifiers = list(told.get("classifiers", []))
    facts.project_urls = dict(told.get("project_urls", {}))
    facts.extras = list(told.get("provides_extra", []))
    facts.author = told.get("author") or told.get("author_email") or None
    facts.readme = told.get("description") or None
    facts.readme_type = told.get("description_content_type") or None


CHECKS: list[Step] = [
    read_metadata,
    check_headers,
    read_fields,
    check_metadata_version,
    check_fields,
    check_name,
    check_version,
    read_requirements,
    check_direct_urls,
    check_license_files,
    read_facts,
]
