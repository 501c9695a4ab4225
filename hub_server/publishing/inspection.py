"""Inspection of a file that has arrived."""

from __future__ import annotations

import email
import hashlib
import zipfile
from pathlib import Path

from verifiers.hub.package.facts import FileFacts, Policy
from verifiers.hub.package.names import canonical_version, normalise, parse_sdist_name, parse_wheel_name
from verifiers.hub.package.refusal import refuse


def inspect(path: Path, filename: str, policy: Policy) -> FileFacts:
    """What is known of a file once no rule refuses it."""
    is_wheel = filename.endswith(".whl")
    named = parse_wheel_name(filename) if is_wheel else parse_sdist_name(filename)
    if policy.name and normalise(policy.name) != named.name:
        refuse("file-name", f"the form says {policy.name!r} as name, the file is named {named.name!r}")
    if policy.version and canonical_version(policy.version) != canonical_version(named.version):
        refuse("file-name", f"the form says {policy.version!r} as version, the file {named.version!r}")
    data = path.read_bytes()
    facts = FileFacts(filename, "wheel" if is_wheel else "sdist", named.name, named.name, named.version, len(data))
    facts.sha256 = hashlib.sha256(data).hexdigest()
    facts.blake2b_256 = hashlib.blake2b(data, digest_size=32).hexdigest()
    if is_wheel:
        with zipfile.ZipFile(path) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            facts.metadata_text = archive.read(member).decode()
        told = email.message_from_string(facts.metadata_text)
        facts.display_name, facts.metadata_version = told["Name"], told["Metadata-Version"]
        facts.requires_python, facts.summary = told["Requires-Python"], told["Summary"]
        facts.requires_dist, facts.readme = told.get_all("Requires-Dist", []), str(told.get_payload())
        facts.import_names = [named.name.replace("-", "_")]
    return facts
