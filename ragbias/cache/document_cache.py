"""``DocumentCache`` stores the keys and values of documents for later requests."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from ragbias.cache.stores import BrokenEntryError, Dtypes, FolderStore, MemoryStore, Shapes, States, read_entry
from ragbias.call_site import warn
from ragbias.checks import is_whole
from ragbias.display import shown
from ragbias.errors import ArgumentError, DocumentCacheWarning, WrongTypeError

MEMORY = "2GB"
DISK = "20GB"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.IGNORECASE)
_MAX_BYTES = 10**18  # maximum number of bytes


@dataclass(frozen=True)
class CacheStats:
    """Contents and usage of a cache. An entry is a document or a prefix.

    Attributes:
        memory_entries, memory_bytes: contents of this process's memory.
        disk_entries, disk_bytes: contents of the folder, from all processes.
        memory_hits, disk_hits, misses: number of lookups since the cache was created.
        tokens_reused, tokens_computed: number of tokens in found entries, and in computed entries.
        broken: number of damaged files that the cache has renamed.
    """

    memory_entries: int
    memory_bytes: int
    disk_entries: int
    disk_bytes: int
    memory_hits: int
    disk_hits: int
    misses: int
    tokens_reused: int
    tokens_computed: int
    broken: int

    @property
    def hit_rate(self) -> float:
        """Share of tokens that were reused; 0 before the first lookup."""
        total = self.tokens_reused + self.tokens_computed
        return self.tokens_reused / total if total else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers and the hit rate as JSON-compatible data."""
        return {**asdict(self), "hit_rate": self.hit_rate}


class DocumentCache:
    """A cache of the keys and values of documents. Only methods with ``reusable_documents`` use it.

    The cache is thread-safe, and processes can share its folder. The cache contains no text. Models can share a cache
    without reading each other's entries, because the key of an entry is a digest of model, prefix and document.

    Args:
        memory: maximum size in memory, in bytes or as text such as ``"4GB"``; None stores nothing in memory.
        folder: folder that keeps entries on disk, created if it does not exist; None stores nothing on disk.
        disk: maximum size of the folder, 20 GB by default.
        portable: whether entries may come from another device, backend, number of threads or version of torch, or from
            vLLM. Rounding then differs, so answers may differ from those without a cache.

    Raises:
        ArgumentError: a size is invalid or zero, the folder is not writable, or neither memory nor folder is given.
    """

    def __init__(
        self,
        memory: str | int | None = MEMORY,
        folder: str | Path | None = None,
        disk: str | int | None = None,
        portable: bool = False,
    ) -> None:
        if memory is None and folder is None:
            raise ArgumentError("memory=None and folder=None cache nothing; give at least one of them")
        if disk is not None and folder is None:
            raise ArgumentError(f"disk={disk!r} without a folder; add folder=, or leave disk out")
        if not isinstance(portable, bool):
            raise ArgumentError(f"portable={portable!r}; expected True or False")
        self._memory = MemoryStore(0 if memory is None else parse_size("memory", memory))
        budget = parse_size("disk", DISK if disk is None else disk)
        self.folder = None if folder is None else _folder_path(folder)
        self._disk = None if self.folder is None else FolderStore(self.folder, budget)
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("memory_hits", "disk_hits", "misses", "tokens_reused", "tokens_computed"), 0)
        self._warned: set[str] = set()
        self._models: set[str] = set()
        self.salt = ""
        self.portable = portable

    def with_salt(self, salt: str) -> DocumentCache:
        """Return a view of this cache for one tenant. The view only reads and writes entries with this salt."""
        cache = DocumentCache.__new__(DocumentCache)
        vars(cache).update(vars(self), salt=salt)
        return cache

    def register_model(self, model: str) -> None:
        """Register a model's identity. Warn if other models use the cache."""
        if model in self._models:
            return
        owners = self._disk.models() if self._disk else set()
        if self._models - {model}:  # another thread may have added this model
            self._warn_once("models", f"several models share {self!r}; they do not reuse each other's entries")
        elif owners and model not in owners:
            self._warn_once(
                "models",
                f"{self.folder} contains documents of other models (other weights, dtype, device, threads or backend) "
                "but none of this model; use another folder, or clear it if the other models are no longer used",
            )
        self._models.add(model)

    def __contains__(self, key: str) -> bool:
        return key in self._memory or (self._disk is not None and key in self._disk)

    def get(self, key: str, shapes: Shapes | None = None, dtypes: Dtypes = ()) -> States | None:
        """Return the states for a key. Return None if they are missing or damaged, or if shapes or dtypes differ."""
        states = self._memory.get(key)
        if states is not None:
            self._count("memory_hits", "tokens_reused", states.tokens)
            return states
        if self._disk is not None:
            states = self._read(self._disk, key, shapes, dtypes)
        if states is not None:
            self._count("disk_hits", "tokens_reused", states.tokens)
            self._memory.put(key, states)
        return states

    def put(self, key: str, states: States) -> None:
        """Store computed states in memory and in the folder. Warn once if the folder cannot be written."""
        self._count("misses", "tokens_computed", states.tokens)
        self._memory.put(key, states)
        if self._disk is not None:
            try:
                self._disk.put(key, states)
            except OSError as error:
                self._warn_once(
                    "disk", f"documents are not cached in {self.folder}: {error}; requests run without the cache"
                )

    def stats(self) -> CacheStats:
        """Return the contents and usage of the cache."""
        sizes = [size for _, _, size in self._disk.files()] if self._disk else []
        broken = len(self._disk.broken_files()) if self._disk else 0
        memory = self._memory
        return CacheStats(len(memory), memory.nbytes, len(sizes), sum(sizes), **self._counts, broken=broken)

    def verify(self, progress: Callable[[Path], None] = lambda path: None) -> dict[Path, str]:
        """Read all files of the folder. Return the errors of damaged files. ``progress`` is called with each path."""
        errors = {}
        files = list(self._disk.files()) if self._disk else []
        for path, _, _ in files:
            try:
                read_entry(path)
            except FileNotFoundError:
                pass  # another process removed the file
            except BrokenEntryError as error:
                errors[path] = str(error)
            progress(path)
        return errors

    def clear(self) -> None:
        """Remove all entries from memory and folder."""
        self._memory.clear()
        if self._disk is not None:
            self._disk.clear()

    def warn_unused(self, method: str, reason: str) -> None:
        """Warn, once per method, that requests with this method do not use the cache."""
        self._warn_once(f"method {method}", f"{method} runs without its document cache: {reason}")

    def _warn_once(self, about: str, message: str) -> None:
        with self._lock:
            if about in self._warned:
                return
            self._warned.add(about)
        warn(message, DocumentCacheWarning)

    def _read(self, disk: FolderStore, key: str, shapes: Shapes | None, dtypes: Dtypes) -> States | None:
        try:
            return disk.get(key, shapes, dtypes)
        except BrokenEntryError as error:
            self._warn_once("broken", f"{error}; the file was renamed, and its entry is computed again")
        except OSError as error:
            self._warn_once("reading", f"documents in {self.folder} cannot be read: {error}; they are computed again")
        return None

    def _count(self, lookup: str, tokens: str, count: int) -> None:
        with self._lock:
            self._counts[lookup] += 1
            self._counts[tokens] += count

    def __getstate__(self) -> NoReturn:
        raise WrongTypeError(
            "a DocumentCache, or a model with one, cannot be pickled or copied; create another cache in the other "
            "process: caches can share a folder"
        )

    def __repr__(self) -> str:
        size = tqdm.format_sizeof(self._memory.nbytes, "B")
        return f"DocumentCache({len(self._memory)} entries, {size}, folder={self.folder})"


def parse_size(name: str, value: str | int) -> int:
    """Return the bytes of a size such as ``"4GB"``, ``"512 MiB"`` or 1000. Errors contain ``name``."""
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if match and match[2].upper() in _UNITS:
        size = int(min(float(match[1]) * _UNITS[match[2].upper()], 2 * _MAX_BYTES))  # the number may be infinite
    elif is_whole(value):
        size = int(value)
    else:
        raise ArgumentError(f"{name}={shown(value)}; expected a number of bytes, or text such as '500MB' or '4GiB'")
    if not 1 <= size <= _MAX_BYTES:
        raise ArgumentError(f"{name}={shown(value)}; expected more than zero bytes, and at most {_MAX_BYTES:,}")
    return size


def _folder_path(folder: str | Path) -> Path:
    if not isinstance(folder, (str, Path)) or not str(folder):
        raise ArgumentError(f"folder={shown(folder)}; expected the path of a folder, or None")
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # unknown user in the path
        raise ArgumentError(f"folder={shown(str(folder))}: {error}") from error
