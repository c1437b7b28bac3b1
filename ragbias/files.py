"""Files that a reader finds whole: the old content or the new one, never a part; and what is no file to read from."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAMELESS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of writing, which name no file
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def irregular(path: Path) -> str:
    """What stands at ``path`` instead of a regular file, in words; empty for a regular file and for nothing.

    Reading from a pipe that nobody writes to never ends, and neither do some devices.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # missing, or no name of a file: opening it says so
        return ""
    return KINDS.get(stat.S_IFMT(mode), "")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name this file in the error of a full disk, which names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in NAMELESS:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name this file in an error, and remove what was begun of it; one that was there before stays as it is then."""
    existed = path.exists()
    try:
        with naming(path):
            yield
    except BaseException:
        if not existed:
            path.unlink(missing_ok=True)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` to write, which takes its name when the block ends without an error.

    It is on disk before it takes the name, so that a crash of the machine leaves the old content or the new one.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # no other process writes this one
    try:
        with naming(path):
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Put a file's content on disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files on disk, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace ``path`` by a file with this content in one step."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
