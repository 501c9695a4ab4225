"""Tokens as text: `envhub_`, 32 random characters, a checksum of 6.

The prefix and the checksum let leak scanners find tokens and drop false hits without asking the hub. At 190 bits of
randomness a plain SHA-256 is enough at rest.
"""

from __future__ import annotations

import hashlib
import secrets
import string
import zlib

PREFIX = "envhub_"
ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
LENGTH = 32
CHECKSUM = 6


def new_token() -> str:
    """A fresh token."""
    secret = "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))
    return PREFIX + secret + checksum(secret)


def is_token(text: str) -> bool:
    """Whether this is the text of a token, of whichever hub: prefix, length, alphabet and checksum are right."""
    body = text.removeprefix(PREFIX)
    secret, check = body[:LENGTH], body[LENGTH:]
    right = secrets.compare_digest(check.encode(), checksum(secret).encode())
    return right and text.startswith(PREFIX) and len(secret) == LENGTH


def checksum(secret: str) -> str:
    """CRC-32 in base 62, six characters."""
    number = zlib.crc32(secret.encode())
    digits = []
    for _ in range(CHECKSUM):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def digest(token: str) -> str:
    """What the hub keeps of a token."""
    return hashlib.sha256(token.encode()).hexdigest()
