"""Stores for the keys and values of documents: one in memory, one in a folder.

A folder has one safetensors file per entry, with a checksum and without any text. Processes can share the folder.
Writes are atomic: a process never reads an incomplete file.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ragbias.errors import ArgumentError
from ragbias.files import irregular_kind

SUFFIX = ".states.safetensors"  # not that of model weights, which must never be removed; change it with the format
BROKEN = ".states.broken"
ABANDONED = 3_600  # seconds without a write after which an incomplete file is removed
Shapes = Sequence[tuple[int, int, int]]  # for each layer, the shape of its keys, and of its values
Dtypes = Collection[torch.dtype]  # allowed dtypes of keys and values; all if empty
SPARE = 0.05  # share of the budget that a process may write before it counts all files again


class BrokenEntryError(Exception):
    """The file of an entry is damaged."""


@dataclass(frozen=True)
class States:
    """Keys and values of ``T`` adjacent tokens.

    Attributes:
        keys, values: tensors ``[G, T, d]`` by layer, on the CPU, in the model's dtype. Keys have no position encoding.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @property
    def tokens(self) -> int:
        return self.keys[0].shape[1]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))


class MemoryStore:
    """Entries in memory, up to ``budget`` bytes. The least recently used entries are removed first."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._entries: OrderedDict[str, States] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def get(self, key: str) -> States | None:
        with self._lock:
            states = self._entries.get(key)
            if states is not None:
                self._entries.move_to_end(key)
            return states

    def put(self, key: str, states: States) -> None:
        """Add an entry, unless it is larger than the budget."""
        with self._lock:
            if key in self._entries or states.nbytes > self._budget:
                return
            self._entries[key] = states
            self.nbytes += states.nbytes
            while self.nbytes > self._budget:
                _, oldest = self._entries.popitem(last=False)
                self.nbytes -= oldest.nbytes

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self.nbytes = 0


class FolderStore:
    """Entries in a folder, up to ``budget`` bytes. The least recently used entries are removed first."""

    def __init__(self, path: Path, budget: int) -> None:
        self.path = path
        self._budget = budget
        self._lock = threading.Lock()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._remove_incomplete()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ArgumentError(f"folder={str(path)!r}: {why}; expected a folder to write to") from error
        self._free = 0.0  # bytes that this process may write before it counts the files of all processes

    def _remove_incomplete(self) -> None:
        for temporary in self.path.glob("*.tmp"):
            with suppress(FileNotFoundError):  # another process finished or removed it
                if time.time() - temporary.stat().st_mtime > ABANDONED:
                    temporary.unlink()

    def files(self) -> Iterator[tuple[Path, float, int]]:
        """Yield file, time of last use and size in bytes of each entry."""
        for path in self.path.glob(f"*{SUFFIX}"):
            with suppress(OSError):  # removed by another process, or a loop of links
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    yield path, status.st_mtime, status.st_size

    def broken_files(self) -> list[Path]:
        """Return the paths of damaged files that ``get`` has renamed."""
        return list(self.path.glob(f"*{BROKEN}"))

    def models(self) -> set[str]:
        """Return the identities of the models whose entries are in the folder."""
        return {path.name.partition("-")[0] for path, _, _ in self.files()}

    def __contains__(self, key: str) -> bool:
        return os.path.exists(self.path / (key + SUFFIX))  # False also after an error of the file system

    def get(self, key: str, shapes: Shapes | None = None, dtypes: Dtypes = ()) -> States | None:
        """Return the entry, or None if it does not exist. Rename a damaged file and raise ``BrokenEntryError``."""
        path = self.path / (key + SUFFIX)
        try:
            states = read_entry(path, shapes, dtypes)
        except FileNotFoundError:
            return None
        except BrokenEntryError:
            with suppress(OSError):
                os.replace(path, self.path / (key + BROKEN))
            raise
        with suppress(OSError):  # the folder may be read-only
            os.utime(path)
        return states

    def put(self, key: str, states: States) -> None:
        """Write an entry, unless it exists or is larger than the budget. If writing fails, no partial file remains."""
        path = self.path / (key + SUFFIX)
        if states.nbytes > self._budget or path.exists():
            return
        self._make_room(states.nbytes)
        self.path.mkdir(parents=True, exist_ok=True)  # another process may have removed it
        temporary = self.path / f"{key}-{uuid.uuid4().hex}.tmp"
        try:
            write_entry(temporary, key, states)
            with self._lock:
                self._free -= temporary.stat().st_size - states.nbytes
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def _make_room(self, needed: int) -> None:
        """Remove old entries if ``needed`` bytes do not fit. Free extra space, so that removal is rare."""
        with self._lock:
            self._free -= needed
            if self._free >= 0:
                return
            entries = sorted(self.files(), key=lambda entry: entry[1])
            free = self._budget - needed - sum(size for _, _, size in entries)
            spare = self._budget * SPARE
            oldest_first = entries if free < 0 else []
            for path, _, size in oldest_first:
                if free >= 0 and free + size > spare:
                    break
                with suppress(OSError):
                    path.unlink()
                free += size
            self._free = min(free, spare)

    def clear(self) -> None:
        for path in [*(file for file, _, _ in self.files()), *self.broken_files()]:
            path.unlink(missing_ok=True)


def write_entry(path: Path, key: str, states: States) -> None:
    """Write states and their checksum to a file."""
    parts = {"keys": states.keys, "values": states.values}
    tensors = {f"{name}{layer}": tensor for name, layers in parts.items() for layer, tensor in enumerate(layers)}
    metadata = {"key": key, "sha256": _checksum(key, tensors)}
    path.touch(mode=0o600)  # readable by its owner only, because keys and values reveal the document
    # safetensors.torch.save_file leaves a temporary file if the process is killed
    path.write_bytes(save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata))


def read_entry(path: Path, shapes: Shapes | None = None, dtypes: Dtypes = ()) -> States:
    """Read the states in a file. Raise ``BrokenEntryError`` if the file is damaged, or shapes or dtypes differ."""
    if kind := irregular_kind(path):
        raise BrokenEntryError(f"{path} is {kind}")
    data = path.read_bytes()  # read at once, because other processes may remove or change the file
    try:
        header = data[8 : 8 + int.from_bytes(data[:8], "little")]
        metadata = json.loads(header).get("__metadata__", {})
        tensors = load(data)
    except (SafetensorError, AttributeError, KeyError, ValueError, RuntimeError) as error:
        raise BrokenEntryError(f"{path} cannot be read: {error}") from error
    key = path.name.removesuffix(SUFFIX)
    if metadata.get("key") != key or metadata.get("sha256") != _checksum(key, tensors):
        raise BrokenEntryError(f"{path} is damaged: its checksum differs")
    layers = [[tensors.get(f"{name}{layer}") for layer in range(len(tensors) // 2)] for name in ("keys", "values")]
    stored = [[tuple(tensor.shape) for tensor in part if tensor is not None] for part in layers]
    has_shapes = stored == [list(shapes or stored[0])] * 2
    has_dtypes = not dtypes or all(tensor.dtype in dtypes for tensor in tensors.values())
    if not has_shapes or not has_dtypes:
        raise BrokenEntryError(f"{path} does not fit: its keys and values have another shape or dtype than the model's")
    return States(*(tuple(tensor for tensor in part if tensor is not None) for part in layers))


def _checksum(key: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(key.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
