"""Steps on RECORD: its rows and the members of a wheel match one to one, in hash and size.

Installers do not compare them (pip, uv), so a hub that did not either would hand out wheels whose own list of files
is wrong. `Policy.strict_record=False` turns what is wrong in the *content* into remarks; the form stays strict.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Mapping

from verifiers.hub.package.paths import check_path
from verifiers.hub.package.refusal import RefusedError, printable, refuse
from verifiers.hub.package.subject import Row, Step, Subject
from verifiers.hub.package.zip_walk import Digest

MAX_RECORD = 16 << 20
"""Bytes; about a hundred a member."""

DIGEST_BYTES = {"sha256": 32, "sha384": 48, "sha512": 64}
"""The algorithms that count; md5 and sha1 do not."""

_ROW = 3
_ALGORITHM = re.compile(r"[A-Za-z0-9_-]*\Z")
_BASE64 = re.compile(r"[A-Za-z0-9_-]*\Z")


def record_of(subject: Subject) -> str:
    """Where RECORD is."""
    return f"{subject.root}/RECORD"


def is_exempt(subject: Subject, path: str) -> bool:
    """RECORD can not hold its own hash, and a signature is made after it."""
    return path in {f"{record_of(subject)}{end}" for end in ("", ".jws", ".p7s")}


def read_record(subject: Subject) -> None:
    """It is there, as CSV of path, hash and size, with each path once."""
    member = record_of(subject)
    if member not in subject.sizes:
        refuse("record-missing", f"there is no {member}", member)
    text = subject.text(member, MAX_RECORD, "record-form")
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except csv.Error as error:
        refuse("record-form", f"it is no CSV: {error}", member)
    for row in rows:
        parsed = _row(member, row)
        if parsed.path in subject.record:
            refuse("record-form", f"{printable(parsed.path)!r} has two rows", member)
        subject.record[parsed.path] = parsed


def _row(member: str, row: list[str]) -> Row:
    if len(row) != _ROW:
        refuse("record-form", f"a row is not path, hash and size: {_shown(row)}", member)
    path, told, size = row
    try:
        check_path(path)  # whether the wheel holds it or not: installers remove what RECORD lists
    except RefusedError as error:
        refuse("record-form", f"a path that no member may have: {error.message}", member)
    algorithm, _, encoded = told.partition("=")
    if size and not (size.isascii() and size.isdigit() and len(size) < 20):
        refuse("record-form", f"a size is no number: {_shown(row)}", member)
    digits = encoded.rstrip("=")
    if _ALGORITHM.match(algorithm) is None or _BASE64.match(digits) is None or len(digits) % 4 == 1:
        refuse("record-form", f"a hash can not be read: {_shown(row)}", member)
    digest = base64.urlsafe_b64decode(digits + "=" * (-len(digits) % 4))
    return Row(path, algorithm, digest, int(size) if size else None)


def _shown(row: list[str]) -> str:
    return repr(printable(",".join(row)))


def check_listed(subject: Subject) -> None:
    """Every file has a row."""
    for path in subject.sizes:
        if path not in subject.record and not is_exempt(subject, path):
            _wrong(subject, "record-unlisted", "it has no row in RECORD", path)


def check_present(subject: Subject) -> None:
    """Every row has a file."""
    for path in subject.record:
        if path not in subject.sizes:
            _wrong(subject, "record-absent", "RECORD lists it, and the wheel does not hold it", path)


def check_hashed(subject: Subject) -> None:
    """Every row has a hash, SHA-256 or better."""
    for path, row in subject.record.items():
        if is_exempt(subject, path):
            continue
        if DIGEST_BYTES.get(row.algorithm) != len(row.digest):
            told = repr(printable(row.algorithm)) if row.algorithm else "none"
            _wrong(subject, "record-hash", f"its hash in RECORD is {told}, not sha256, sha384 or sha512", path)


def check_content(subject: Subject) -> None:
    """Hash and size in each row are the file's."""
    digests = subject.digests()
    for path, row in subject.record.items():
        size = subject.sizes.get(path)
        if size is None or DIGEST_BYTES.get(row.algorithm) != len(row.digest):
            continue
        if row.size is not None and row.size != size:
            _wrong(subject, "record-content", f"RECORD says {row.size:,} bytes, it has {size:,}", path)
        elif row.digest != _digest(subject, path, row.algorithm, digests):
            _wrong(subject, "record-content", f"its {row.algorithm} is another one than in RECORD", path)


def _digest(subject: Subject, path: str, algorithm: str, digests: Mapping[str, Digest]) -> bytes:
    if algorithm == "sha256":
        return bytes.fromhex(digests[path].sha256_hex)
    return hashlib.new(algorithm, subject.read(path, subject.sizes[path])).digest()


def _wrong(subject: Subject, code: str, what: str, path: str) -> None:
    if subject.policy.strict_record:
        refuse(code, what, path)
    subject.remark(code, what, path)


CHECKS: list[Step] = [read_record, check_listed, check_present, check_hashed, check_content]
