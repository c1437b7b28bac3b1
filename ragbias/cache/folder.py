"""The states that are kept in a folder, within a budget: a safetensors file each, with a checksum, and never any text.

Several processes may use one folder. A file gets its name when it is whole, so a reader finds all of it or none,
whenever a process is killed.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ragbias.cache.states import States
from ragbias.errors import ArgumentError

FORMAT = 1
SUFFIX = ".states.safetensors"  # of no other file, such as a model's weights: those are never removed
BROKEN = ".states.broken"
HOST = socket.gethostname()
UNCOUNTED = 0.05  # of the budget may be written by each process before it counts what all have written


class BrokenEntryError(Exception):
    """A file that is not what was written under its name."""


class NewerEntryError(Exception):
    """A file of a later version of the format."""


class FolderStore:
    """Entries of at most ``budget`` bytes together; those that were read or written the longest ago leave.

    Raises:
        ArgumentError: ``path`` is a file, or cannot be made or written to.
    """

    def __init__(self, path: Path, budget: int) -> None:
        self.path = path
        self._budget = budget
        self._lock = threading.Lock()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._sweep()
        except (OSError, ValueError) as error:  # a name that is none
            why = getattr(error, "strerror", None) or error
            raise ArgumentError(f"folder={str(path)!r}: {why}; expected a folder to write to") from error
        self._size = sum(size for _, _, size in self.files())  # when it was last counted, and what was written since
        self._uncounted = 0

    def _sweep(self) -> None:
        """Remove what killed processes of this machine left half-written."""
        for temporary in self.path.glob("*.tmp"):
            host, _, pid = temporary.name.removesuffix(".tmp").split(".", 1)[-1].rpartition("-")
            if host == HOST and pid.isdigit() and not _is_running(int(pid)):
                temporary.unlink(missing_ok=True)

    def files(self) -> Iterator[tuple[Path, float, int]]:
        """Each entry's file, when it was last used, and its size in bytes."""
        for path in self.path.glob(f"*{SUFFIX}"):
            with suppress(FileNotFoundError):  # another process removed it meanwhile
                stat = path.stat()
                yield path, stat.st_mtime, stat.st_size

    def __contains__(self, key: str) -> bool:
        return (self.path / (key + SUFFIX)).exists()

    def get(self, key: str) -> States | None:
        """The entry, whole and checked.

        Raises:
            BrokenEntryError: the file is damaged; it was renamed, so that it is not met again.
            NewerEntryError: a later version wrote it; it stays as it is.
            OSError: it cannot be read.
        """
        path = self.path / (key + SUFFIX)
        try:
            states = read_entry(path)
        except FileNotFoundError:
            return None
        except BrokenEntryError:
            with suppress(OSError):
                os.replace(path, self.path / (key + BROKEN))
            raise
        with suppress(OSError):  # of a folder that may only be read
            os.utime(path)
        return states

    def put(self, key: str, states: States) -> None:
        """Keep an entry; one that is larger than the budget, or there already, is not written.

        Raises:
            OSError: the disk is full, or the folder cannot be written to; nothing is left behind.
        """
        path = self.path / (key + SUFFIX)
        if states.nbytes > self._budget or path.exists():
            return
        self._make_room(states.nbytes)
        temporary = self.path / f"{key}-{threading.get_ident()}.{HOST}-{os.getpid()}.tmp"
        try:
            write_entry(temporary, key, states)
            size = temporary.stat().st_size
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        with self._lock:
            self._size += size
            self._uncounted += size

    def _make_room(self, needed: int) -> None:
        """Remove entries until so many bytes fit; other processes' are counted now and then."""
        with self._lock:
            if self._size + needed <= self._budget and self._uncounted < self._budget * UNCOUNTED:
                return
            oldest_first = sorted(self.files(), key=lambda file: file[1])
            self._size, self._uncounted = sum(size for _, _, size in oldest_first), 0
            for path, _, size in oldest_first:
                if self._size + needed <= self._budget:
                    break
                path.unlink(missing_ok=True)
                self._size -= size

    def clear(self) -> None:
        """Remove all entries, broken ones too."""
        for path in [*self.path.glob(f"*{SUFFIX}"), *self.path.glob(f"*{BROKEN}")]:
            path.unlink(missing_ok=True)
        with self._lock:
            self._size = 0


def write_entry(path: Path, key: str, states: States) -> None:
    """Write states to a file, checksum included.

    Raises:
        OSError: it cannot be written.
    """
    tensors = {f"{name}{layer}": each for name, of in _parts(states) for layer, each in enumerate(of)}
    metadata = {"format": str(FORMAT), "key": key, "sha256": _checksum(key, tensors)}
    # not by safetensors' own writing, whose temporary files stay behind where the process is killed
    path.write_bytes(save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata))


def read_entry(path: Path) -> States:
    """Read states from a file that is named by their key.

    Raises:
        FileNotFoundError: there is none.
        BrokenEntryError, NewerEntryError: as of ``FolderStore.get``.
    """
    before = _version(path)
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format", "").isdigit() and int(metadata["format"]) > FORMAT:
                raise NewerEntryError(f"{path} has format {metadata['format']}; this version reads {FORMAT}")
            # cloned, as they would change with the file otherwise, after they were checked
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118, no mapping
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        if _version(path) != before:  # another process removed it between the two times that safetensors opens it
            return read_entry(path)
        raise BrokenEntryError(f"{path} cannot be read: {error}") from error
    key = path.name.removesuffix(SUFFIX)
    if metadata.get("key") != key or metadata.get("sha256") != _checksum(key, tensors):
        raise BrokenEntryError(f"{path} is not what was written: its checksum differs")
    layers = range(len(tensors) // 2)
    return States(
        tuple(tensors[f"keys{layer}"] for layer in layers), tuple(tensors[f"values{layer}"] for layer in layers)
    )


def _version(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns


def _parts(states: States) -> list[tuple[str, tuple[Tensor, ...]]]:
    return [("keys", states.keys), ("values", states.values)]


def _checksum(key: str, tensors: dict[str, Tensor]) -> str:
    found = hashlib.sha256(key.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
