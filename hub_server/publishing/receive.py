"""A multipart upload on its way in: fields into memory, the file straight to disk, hashed as it arrives.

    receiver = FormReceiver(content_type, incoming, limit)
    receiver.feed(chunk) …
    form = receiver.finish()
    receiver.discard()          # always: whatever was not taken over as a blob is removed

Nothing is held twice: a chunk is hashed, written and forgotten. What clients send, and in which order, is measured in
docs/decisions/0022-publishing.md.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from hub_server.publishing.errors import BadForm, TooLarge, WrongDigest

FIELD_BYTES = 4 << 20
"""Of one field: a README of some MiB travels in one."""

FORM_BYTES = 8 << 20
"""Of all fields and part headers together."""

MAX_FIELDS = 2000


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that has arrived: where it lies in `incoming`, what it is to be called, its size in bytes, its digests."""

    path: Path
    filename: str
    size: int
    sha256: str


@dataclass(slots=True)
class Form:
    """What was sent: every value of every field, in order, and the file."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    upload: Upload | None = None

    def first(self, name: str) -> str:
        """The first value of a field; empty if there is none."""
        return self.fields.get(name, [""])[0]


class FormReceiver:
    """Parses a form as it arrives. One at a time calls it; any thread may."""

    def __init__(self, content_type: str, incoming: Path, file_limit: int) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary or len(boundary) > 200:
            raise BadForm("the upload is no multipart/form-data with a boundary")
        self.form = Form()
        self._path = incoming / f"upload-{secrets.token_hex(16)}"
        self._limit = file_limit
        self._file: BinaryIO | None = None
        self._sha256, self._blake2b = hashlib.sha256(), hashlib.blake2b(digest_size=32)
        self._size = self._form_bytes = self._count = 0
        self._header, self._value = bytearray(), bytearray()
        self._name = self._filename = ""
        self._disposition = b""
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._part_data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
        )

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body."""
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise BadForm(f"the upload is no readable form: {error}") from None

    def finish(self) -> Form:
        """The form, whose file is complete and has the digests that the form says."""
        if not self._ended:
            raise BadForm("the upload ended before its last boundary")
        form = self.form
        if form.upload is not None:
            self._check_digests(form.upload)
        return form

    def discard(self) -> None:
        """Close, and remove the file if it is still there."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._path.unlink(missing_ok=True)

    def _check_digests(self, upload: Upload) -> None:
        """Compare each digest that the form names."""
        for name, ours in (("sha256_digest", upload.sha256), ("blake2_256_digest", self._blake2b.hexdigest())):
            self._compare(name, ours)
        if self.form.first("md5_digest"):
            with upload.path.open("rb") as file:
                md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
            self._compare("md5_digest", md5.hexdigest())

    def _compare(self, name: str, ours: str) -> None:
        told = self.form.first(name).lower()
        if told and not hmac.compare_digest(told.encode(), ours.encode()):
            raise WrongDigest(f"{name} is {told[:80]} in the form, and {ours} of the bytes that arrived")

    # --- what the parser calls ----------------------------------------------------------------------------------

    def _part_begin(self) -> None:
        self._count += 1
        if self._count > MAX_FIELDS:
            raise BadForm(f"the form has more than {MAX_FIELDS} fields")
        self._disposition = b""
        self._name = self._filename = ""
        self._value.clear()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._count_form_bytes(len(self._header) + len(self._value))
        if bytes(self._header).lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _headers_finished(self) -> None:
        kind, options = parse_options_header(self._disposition)
        name, filename = options.get(b"name"), options.get(b"filename")
        if kind != b"form-data" or not name:
            raise BadForm("a part of the form has no name")
        self._name = _text(name, "a name")
        if self._name == "content":
            if not filename:
                raise BadForm("the field content must be a file")
            if self._file is not None or self.form.upload is not None:
                raise BadForm("the form has more than one file")
            self._filename = _text(filename, "the file name")
            self._file = self._path.open("xb")
        elif filename is not None:
            raise BadForm(f"the field {self._name!r} is a file; only content may be one")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        part = memoryview(data)[start:end]
        if self._file is not None:
            self._size += len(part)
            if self._size > self._limit:
                raise TooLarge(f"{self._filename[:200]!r} has more than {self._limit:,} bytes")
            self._sha256.update(part)
            self._blake2b.update(part)
            self._file.write(part)
        else:
            self._count_form_bytes(len(part))
            self._value += part
            if len(self._value) > FIELD_BYTES:
                raise TooLarge(f"the field {self._name!r} has more than {FIELD_BYTES:,} bytes")

    def _part_end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self.form.upload = Upload(self._path, self._filename, self._size, self._sha256.hexdigest())
            return
        value = _text(bytes(self._value), f"the field {self._name!r}")
        if value.strip() != "UNKNOWN":  # what old tools write for nothing
            self.form.fields.setdefault(self._name, []).append(value)

    def _end(self) -> None:
        self._ended = True

    def _count_form_bytes(self, number: int) -> None:
        self._form_bytes += number
        if self._form_bytes > FORM_BYTES:
            raise TooLarge(f"the fields of the form have more than {FORM_BYTES:,} bytes")


def _text(data: bytes, what: str) -> str:
    if b"\0" in data:
        raise BadForm(f"{what} holds a NUL")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadForm(f"{what} is not UTF-8") from None
