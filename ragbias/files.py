"""Files that a reader finds whole: the old content or the new one, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` to write, which takes its name when the block ends without an error."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # no other process writes this one
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` by a file with this content in one step."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
