"""Encryption of payloads and of the cache on disk: AES-256-GCM by the package
`cryptography`.

The associated data bind a payload to the key that its nodes state, so that one cannot
take another's place. Keys never appear in messages.
"""

from __future__ import annotations

import hashlib
import os

from epctx_core.errors import EPFail, InvalidArgument
from epctx_sim_vitisai.settings import EP

MAGIC = b"EPCTX-SIM-VITISAI AES-256-GCM 1\n"
NONCE = 12
TAG = 16
MAX_CONTENT = (1 << 31) - 1
"""Bytes that `cryptography` encrypts at once."""


class UnsealingError(Exception):
    """The key is another one, or something was altered: the cipher cannot tell
    which.
    """


def is_sealed(view: memoryview) -> bool:
    """Return whether bytes were sealed here."""
    return bytes(view[: len(MAGIC)]) == MAGIC


class Sealer:
    """Seals and opens with one key.

    Args:
        key: 32 bytes.

    Raises:
        InvalidArgument: the package `cryptography` is missing or broken.
    """

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise InvalidArgument(
                f"{EP}: option 'encryption_key' needs the package cryptography, which "
                f"cannot be imported: {error}.",
                ep=EP,
                hint="pip install cryptography",
            ) from error
        self._cipher = AESGCM(key)
        self._nonces: dict[bytes, bytes] = {}

    def seal(self, content: bytes | bytearray | memoryview, associated: str) -> bytes:
        """Return content sealed; the same content of one instance gives the same bytes.

        Raises:
            EPFail: too large for the cipher.
        """
        if len(content) > MAX_CONTENT - TAG:
            raise EPFail(
                f"{EP} cannot encrypt {len(content):,} bytes: the limit is "
                f"{MAX_CONTENT - TAG:,}.",
                ep=EP,
                hint="Leave encryption_key out, or compile the model in parts.",
            )
        # Drawn anew for each content: a nonce used twice for different ones gives the
        # key's secrets away.
        digest = hashlib.sha256(associated.encode() + b"\0")
        digest.update(content)
        nonce = self._nonces.setdefault(digest.digest(), os.urandom(NONCE))
        return MAGIC + nonce + self._cipher.encrypt(nonce, content, associated.encode())

    def open(self, view: memoryview, associated: str) -> memoryview:
        """Return what was sealed, in new memory.

        Raises:
            UnsealingError: another key, other associated data, or altered bytes.
        """
        from cryptography.exceptions import InvalidTag

        nonce = bytes(view[len(MAGIC) : len(MAGIC) + NONCE])
        content = view[len(MAGIC) + NONCE :]
        if len(nonce) < NONCE or len(content) < TAG or len(content) > MAX_CONTENT:
            raise UnsealingError
        try:
            return memoryview(self._cipher.decrypt(nonce, content, associated.encode()))
        except InvalidTag as error:
            raise UnsealingError from error


def sealer_for(key: bytes | None) -> Sealer | None:
    """Return a sealer for the key of the options, None without one."""
    return None if key is None else Sealer(key)
