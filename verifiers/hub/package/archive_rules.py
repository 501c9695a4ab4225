"""The rules for archives as such, as rows of code, summary and hint; `refusal.RULES` holds them with all others."""

_REBUILD = "Build again with a current tool (uv build, hatchling, setuptools), and publish what it makes as it is."
_RENAME = "Rename the file, build again, and publish that."
_SMALLER = "Leave data out of the package and load it at run time."
_DAMAGED = "The file is damaged: build again, or copy it again."

ARCHIVE_RULES: tuple[tuple[str, str, str], ...] = (
    # names
    ("path-encoding", "A name in an archive is UTF-8, and in a ZIP says so where it is not ASCII.", _RENAME),
    (
        "path-control",
        "A name holds no control character, line separator, or character that changes the order it is shown in.",
        _RENAME,
    ),
    ("path-backslash", "A name holds no backslash.", _REBUILD),
    ("path-absolute", "A name does not start with a slash.", _REBUILD),
    ("path-drive", "No part of a name starts with a drive letter, such as `C:`.", _RENAME),
    (
        "path-windows",
        "No part of a name is a device of Windows (`con`, `aux.py`, `nul`), and none holds any of `:*?\"<>|`.",
        _RENAME,
    ),
    ("path-parts", "No part of a name is empty or only dots and blanks, such as `..`.", _REBUILD),
    ("path-length", "A name is at most 1024 bytes, each of its parts at most 255.", _RENAME),
    ("path-duplicate", "A name is there once.", _REBUILD),
    (
        "path-twin",
        "No two names are equal where case, accents' encoding, and dots or blanks at the end are not told apart.",
        _RENAME,
    ),
    ("path-conflict", "No name is that of a file and of a folder.", _RENAME),
    # amounts
    (
        "archive-members",
        "An archive has at most as many members, and makes as many folders, as the hub's limit says (20,000).",
        _SMALLER,
    ),
    (
        "archive-bomb",
        "An archive does not unpack to more than 64 MiB and 50 times its own size, unless the hub's limits say so.",
        _SMALLER,
    ),
    ("member-size", "A file that the hub reads, such as METADATA or pyproject.toml, is not too large.", _SMALLER),
    # ZIP
    ("zip-truncated", "A ZIP ends where its headers say.", _DAMAGED),
    ("zip-gap", "Local headers follow each other from the first byte, with nothing before or between.", _REBUILD),
    (
        "zip-directory",
        "The directory at the end of a ZIP lists the members that are there, each once, in the same order.",
        _REBUILD,
    ),
    ("zip-mismatch", "A member's local header says what its entry in the directory says.", _REBUILD),
    ("zip-end", "The end record of a ZIP is exact in counts, size and offset.", _REBUILD),
    ("zip-trailing", "Nothing follows the end record of a ZIP.", "Publish one archive, exactly as it was built."),
    ("zip-comment", "Neither a ZIP nor a member has a comment: one can hide a second archive.", _REBUILD),
    ("zip-encrypted", "No member is encrypted.", _REBUILD),
    ("zip-descriptor", "Sizes stand in a member's header, not in a data descriptor after its data.", _REBUILD),
    ("zip-flags", "No flag of a member is set that changes how it is read.", _REBUILD),
    ("zip-method", "Members are stored or deflated.", "Build without another compression, such as LZMA or Zstandard."),
    ("zip-kind", "Members are regular files and folders; a folder is called so in every way and is empty.", _REBUILD),
    (
        "zip-extra",
        "A member's extra fields are well formed, none twice, and none gives another name or kind.",
        _REBUILD,
    ),
    (
        "zip-zip64",
        "ZIP64 fields stand exactly where the 32-bit field says so, or repeat both sizes of a local header.",
        "Re-tag or build again with a newer wheel (wheel 0.46.2 or later): older ones wrote such headers.",
    ),
    ("zip-crc", "The bytes of a member have the checksum that its headers give.", _DAMAGED),
    ("zip-data", "The data of a member decode to exactly as many bytes as its headers say.", _DAMAGED),
    # source archives
    ("tar-gzip", "A source archive is one gzip member, whole, with the right checksum.", _DAMAGED),
    ("tar-trailing", "Nothing follows the end of a source archive, neither in it nor after it.", _REBUILD),
    ("tar-truncated", "A source archive ends with two blocks of zeros, after whole members.", _DAMAGED),
    ("tar-header", "A header of a source archive is well formed and has the right checksum.", _REBUILD),
    ("tar-kind", "Members of a source archive are regular files and folders: no links, devices or holes.", _REBUILD),
    ("tar-size", "Every statement of a member's size is the same.", _REBUILD),
    (
        "tar-extension",
        "A name is extended once, by a pax header (no kind, no link) or a GNU long name, by nothing that all share.",
        _REBUILD,
    ),
    ("tar-top", "A source archive holds one folder at its top, `name-version`.", _REBUILD),
)
