"""The extra fields of a member of a ZIP: sizes that need 64 bits, and what could give the member another name."""

from __future__ import annotations

import struct
import zlib

from verifiers.hub.package.refusal import refuse

_ZIP64, _UNICODE_PATH = 0x0001, 0x7075
_KINDS = {0x000D: "PKWARE's for Unix", 0x6C78: "libarchive's", 0x756E: "ASi's for Unix"}
"""Fields with a mode, which make a link of a file for unzip or bsdtar."""
_32 = 0xFFFFFFFF
_FIELD = struct.Struct("<2H")


def widened(extra: bytes, name: bytes, given: tuple[int, ...], all_at_once: bool) -> tuple[int, ...]:
    """The numbers of a header (size, packed size, offset) once its ZIP64 field is read.

    The field holds a 64-bit number for exactly each 32-bit one that is the sentinel. In a local header these are both
    sizes or none (`all_at_once`; APPNOTE 4.5.3); there alone the field may also repeat both, as Bazel's wheels have it:
    whichever a reader takes, it is the same number. Refuses `zip-zip64` and `zip-extra`.
    """
    if not extra and _32 not in given:
        return given
    wide = _fields(extra, name).get(_ZIP64)
    number = given.count(_32)
    if wide is None and number:
        refuse("zip-zip64", "a size refers to a ZIP64 field that is not there", _shown(name))
    if wide is None:
        return given
    if all_at_once and wide == struct.pack(f"<{len(given)}Q", *given):
        return given
    if not number or len(wide) != 8 * number or (all_at_once and number != len(given)):
        refuse("zip-zip64", "there is a ZIP64 field that the sizes do not refer to", _shown(name))
    values = iter(struct.unpack(f"<{number}Q", wide))
    return tuple(next(values) if one == _32 else one for one in given)


def _fields(extra: bytes, name: bytes) -> dict[int, bytes]:
    """The fields by id; each has two bytes of id and two of length before its content."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(extra):
        if len(extra) - at < _FIELD.size:
            refuse("zip-extra", "the extra fields end within a field", _shown(name))
        kind, length = _FIELD.unpack_from(extra, at)
        at += _FIELD.size
        content = extra[at : at + length]
        at += length
        if at > len(extra):
            refuse("zip-extra", "the extra fields end within a field", _shown(name))
        if kind in found:
            refuse("zip-extra", f"the extra field {kind:#06x} is there twice", _shown(name))
        if kind in _KINDS:
            refuse("zip-extra", f"an extra field, {_KINDS[kind]}, may make a link of the member", _shown(name))
        found[kind] = content
    if found.get(_UNICODE_PATH, _same_path(name)) != _same_path(name):
        refuse("zip-extra", "an extra field gives the member another name", _shown(name))
    return found


def _same_path(name: bytes) -> bytes:
    """A Unicode-path field (version, checksum of the name, name) that says what the header says."""
    return struct.pack("<BL", 1, zlib.crc32(name)) + name


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
