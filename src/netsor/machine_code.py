"""Functions compiled by Numba (the extra `fast`), whose machine code is kept on disk under a checksum.

Numba keeps an index and a file for each signature, and believes both. Here every file ends with a checksum of
its content, its name and the state of the source; a file with another one counts as absent, so the function
is compiled and the file replaced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

__all__ = ["compiled"]

SIZE = hashlib.sha256().digest_size


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A function that is compiled when it is first called, or found compiled on disk."""
    import numba  # type: ignore[import-not-found]

    try:
        made: Any = numba.njit(fn, cache=True, **options)
    except (OSError, RuntimeError):  # there is no folder for it
        return numba.njit(fn, **options)
    kept = made._cache
    stamp = kept._impl.locator.get_source_stamp()
    kept._cache_file = _checked_files()(kept.cache_path, kept._impl.filename_base, stamp)
    return made


@cache
def _checked_files() -> Any:
    """Numba's files of one function, each with a checksum at its end (which `pickle` does not read)."""
    from numba.core.caching import IndexDataCacheFile  # type: ignore[import-not-found]

    class CheckedFiles(IndexDataCacheFile):
        def save(self, key: Any, data: Any) -> None:
            with suppress(OSError):  # a full disk costs the next process some time, and this one nothing
                super().save(key, data)

        def _load_index(self) -> dict[Any, str]:
            return super()._load_index() if self._is_sound(self._index_path) else {}

        def _load_data(self, name: str) -> Any:
            path = self._data_path(name)
            if not self._is_sound(path):
                raise FileNotFoundError(path)  # which Numba expects
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
            return self._checksum(path, content[:-SIZE]) == content[-SIZE:]

    return CheckedFiles
