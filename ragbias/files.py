"""Atomic file writes, errors that name the file, and checks for irregular files."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAMELESS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # write errors, whose messages lack the file name
KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def irregular_kind(path: Path) -> str:
    """Return the kind of an irregular file, such as ``"a named pipe"``. Return an empty string for other paths."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # the caller gets the same error when it opens the file
        return ""
    return KINDS.get(stat.S_IFMT(mode), "")


def digest_of_file(path: Path) -> bytes:
    """Return the SHA-256 digest of a file, which may be larger than memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.digest()


@contextmanager
def file_name_in_errors(path: Path) -> Iterator[None]:
    """Add the file name to I/O errors that lack it, such as those of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in NAMELESS:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Guard a block that writes a file. Name the file in I/O errors. After an error, remove the file if it is new."""
    existed = path.exists()
    try:
        with file_name_in_errors(path):
            yield
    except BaseException:
        if not existed:
            path.unlink(missing_ok=True)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to. At the end of the block, the temporary file replaces ``path`` atomically."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with file_name_in_errors(path):
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, where the file system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of ``path`` in one step."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
