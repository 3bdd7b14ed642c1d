"""A Zarr store that writes a checksum for each file, and verifies it on reading.

The checksum is in a second file with the suffix `.sum`: eight hexadecimal digits, the CRC-32 of the file's
key and bytes. The key is included so that swapped files are noticed. A chunk ends with a CRC-32C, which Zarr
compares whenever it reads the chunk; so for chunks our checksum covers only these four bytes.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.storage import LocalStore

from netsor.files import read_regular
from netsor.gp.stores.store import CRC, SUM, damage, is_chunk


def checksum(key: str, content: bytes | memoryview) -> bytes:
    """The checksum of a file's key and bytes."""
    whole = memoryview(content)
    return b"%08x" % zlib.crc32(whole[-CRC:] if is_chunk(key) else whole, zlib.crc32(key.encode()))


class CheckedStore(LocalStore):
    """The store that the module docstring describes."""

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: Any = None
    ) -> Buffer | None:
        content = await asyncio.to_thread(self._content, key)
        if content is None:
            return None
        return (prototype or default_buffer_prototype()).buffer.from_bytes(content)

    async def set(self, key: str, value: Buffer) -> None:
        # The checksum comes first: an interrupted write leaves a checksum without a file, which is missing.
        digits = checksum(key, value.as_numpy_array().data)
        await super().set(key + SUM, default_buffer_prototype().buffer.from_bytes(digits))
        await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        if not await self.exists(key):
            await self.set(key, value)

    def _content(self, key: str) -> bytes | None:
        """The bytes of a file; None for a missing tile, a DataError for any other missing chunk."""
        try:
            content = read_regular(self.root / key)
        except (FileNotFoundError, NotADirectoryError):
            complete = "x", "y", "mean", "row_sizes", "column_sizes"  # arrays that `create` writes in full
            if is_chunk(key) and key.split("/")[0] in complete:
                raise damage(self.root, key, "is missing") from None
            return None
        except OSError as error:
            raise damage(self.root, key, f"cannot be read: {error.strerror or error}") from None
        try:
            expected = read_regular(self.root / (key + SUM))
        except OSError as error:
            raise damage(self.root, key + SUM, f"cannot be read: {error.strerror or error}") from None
        if expected != checksum(key, content):
            raise damage(self.root, key, "is damaged: its checksum is wrong")
        return content
