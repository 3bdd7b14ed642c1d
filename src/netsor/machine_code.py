"""Compile functions with Numba (the extra `fast`) and keep the machine code on disk under a checksum.

Numba keeps an index and a file for each signature, and trusts both. Here each file ends with a checksum of
its content, its name and the time stamp of the source. A file whose checksum is wrong counts as missing, so
that the function is compiled again and the file is replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a function when it is first called, or load its machine code from disk."""
    import numba  # type: ignore[import-not-found]

    try:
        dispatcher: Any = numba.njit(fn, cache=True, **options)
    except (OSError, RuntimeError):  # Numba finds no folder that it can write to
        return numba.njit(fn, **options)
    cache = dispatcher._cache
    stamp = cache._impl.locator.get_source_stamp()
    cache._cache_file = _checked_files()(cache.cache_path, cache._impl.filename_base, stamp)
    return dispatcher


@cache
def _checked_files() -> type:
    """Numba's class for the files of one function, with a checksum at the end of each, where pickle stops."""
    from numba.core.caching import IndexDataCacheFile  # type: ignore[import-not-found]

    class CheckedFiles(IndexDataCacheFile):
        def save(self, key: Any, data: Any) -> None:
            with suppress(OSError):  # on a full disk the next process has to compile again
                super().save(key, data)

        def _load_index(self) -> dict:
            return super()._load_index() if self._is_sound(self._index_path) else {}

        def _load_data(self, name: str) -> Any:
            path = self._data_path(name)
            if not self._is_sound(path):
                raise FileNotFoundError(path)  # Numba catches it and compiles
            return super()._load_data(name)

        @contextmanager
        def _open_for_write(self, filepath: str) -> Iterator[Any]:
            content = BytesIO()
            yield content
            with super()._open_for_write(filepath) as file:
                file.write(content.getvalue() + self._checksum(filepath, content.getvalue()))

        def _checksum(self, path: str, content: bytes) -> bytes:
            place = f"{Path(path).name} {self._source_stamp!r} "
            return hashlib.sha256(place.encode() + content).digest()

        def _is_sound(self, path: str) -> bool:
            try:
                content = Path(path).read_bytes() if Path(path).is_file() else b""
            except OSError:
                return False
            size = hashlib.sha256().digest_size
            return self._checksum(path, content[:-size]) == content[-size:]

    return CheckedFiles
