"""``DocumentCache``: keys and values of documents, kept from request to request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ragbias.cache.folder import BROKEN, BrokenEntryError, FolderStore, NewerEntryError, read_entry
from ragbias.cache.memory import MemoryStore
from ragbias.cache.sizes import size_of, size_text
from ragbias.cache.states import States
from ragbias.call_site import warn
from ragbias.display import shown
from ragbias.errors import ArgumentError

MEMORY = "2GB"
DISK = "20GB"


class DocumentCacheWarning(UserWarning):
    """Something is not kept, or cannot be used; requests run right all the same, without it."""


@dataclass(frozen=True)
class CacheStats:
    """What a cache holds, and what it was asked for since it was made. Entries are documents, and prefixes.

    Attributes:
        memory_entries, memory_bytes, disk_entries, disk_bytes: what is kept now; of the folder, by all processes.
        memory_hits, disk_hits, misses: entries that were asked for.
        tokens_reused, tokens_computed: of these entries.
        broken: files that were set aside.
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
        """Share of the tokens that were not computed; 0 where none were asked for."""
        asked = self.tokens_reused + self.tokens_computed
        return self.tokens_reused / asked if asked else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "hit_rate": self.hit_rate}


class DocumentCache:
    """Keys and values of documents after their prefix, for methods that make them reusable.

    One cache may serve several threads and, through its folder, processes. It holds no text: entries are named by
    digests of model, prefix and document, so that models which share it never meet each other's.

    Args:
        memory: the most that is kept in memory: bytes, or text such as ``"4GB"``; None: nothing.
        folder: where entries are kept beyond this process; made if it does not exist. None: nowhere.
        disk: the most that is kept there.

    Raises:
        ArgumentError: an amount is no amount or zero, the folder cannot be written to, or nothing would be kept at all.
    """

    def __init__(
        self,
        memory: str | int | None = MEMORY,
        folder: str | Path | None = None,
        disk: str | int | None = None,
    ) -> None:
        if memory is None and folder is None:
            raise ArgumentError("memory=None and folder=None keep nothing; give at least one")
        if disk is not None and folder is None:
            raise ArgumentError(f"disk={disk!r} without a folder; add folder=, or leave it out")
        self._memory = MemoryStore(0 if memory is None else size_of("memory", memory))
        budget = size_of("disk", DISK if disk is None else disk)
        self.folder = None if folder is None else _path(folder)
        self._disk = None if self.folder is None else FolderStore(self.folder, budget)
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("memory_hits", "disk_hits", "misses", "tokens_reused", "tokens_computed"), 0)
        self._warned: set[str] = set()
        self._models: set[str] = set()

    def register(self, model: str) -> None:
        """Take note of a model that uses this cache, by its identity, see ``identity.identity_of``; warns of others."""
        with self._lock:
            if model in self._models:
                return
            self._models.add(model)
            shared = len(self._models) > 1
        if shared:
            self._warn_once("models", f"several models share {self!r}; each has documents of its own, in one budget")
            return
        owners = {path.name.partition("-")[0] for path, _, _ in self._disk.files()} if self._disk else set()
        if owners and model not in owners:
            self._warn_once(
                "models",
                f"{self.folder} holds documents of other models (other weights, dtype, device, threads or backend) "
                "and none of this one, which computes its own; give it another folder, or clear it if they are useless",
            )

    def __contains__(self, key: str) -> bool:
        return key in self._memory or (self._disk is not None and key in self._disk)

    def get(self, key: str) -> States | None:
        """The states under a key; None if they are not kept, or not whole."""
        states = self._memory.get(key)
        if states is not None:
            self._count("memory_hits", "tokens_reused", states.tokens)
        elif self._disk is not None and (states := self._read(self._disk, key)) is not None:
            self._count("disk_hits", "tokens_reused", states.tokens)
            self._memory.put(key, states)
        return states

    def put(self, key: str, states: States) -> None:
        """Keep states that had to be computed."""
        self._count("misses", "tokens_computed", states.tokens)
        self._memory.put(key, states)
        if self._disk is not None:
            try:
                self._disk.put(key, states)
            except OSError as error:
                self._warn_once("disk", f"documents are not kept in {self.folder}: {error}; requests go on without it")

    def stats(self) -> CacheStats:
        """What is kept, and how often it was of use."""
        files = list(self._disk.files()) if self._disk else []
        broken = len(list(self.folder.glob(f"*{BROKEN}"))) if self.folder else 0
        return CacheStats(
            len(self._memory),
            self._memory.nbytes,
            len(files),
            sum(size for _, _, size in files),
            **self._counts,
            broken=broken,
        )

    def verify(self, progress: Callable[[Path], None] = lambda path: None) -> dict[Path, str]:
        """Read every file of the folder, and say what is wrong with which; those are left as they are."""
        wrong = {}
        for path, _, _ in list(self._disk.files()) if self._disk else []:
            try:
                read_entry(path)
            except FileNotFoundError:
                pass  # it left meanwhile
            except (BrokenEntryError, NewerEntryError) as error:
                wrong[path] = str(error)
            progress(path)
        return wrong

    def clear(self) -> None:
        """Forget everything, in memory and in the folder."""
        self._memory.clear()
        if self._disk is not None:
            self._disk.clear()

    def not_used(self, method: str, reason: str) -> None:
        """Say, once for each method, why requests run without this cache."""
        self._warn_once(f"method {method}", f"{method} runs without its document cache: {reason}")

    def _warn_once(self, about: str, message: str) -> None:
        """A ``DocumentCacheWarning`` at the user's line, once for each thing it is about."""
        with self._lock:
            if about in self._warned:
                return
            self._warned.add(about)
        warn(message, DocumentCacheWarning)

    def _read(self, disk: FolderStore, key: str) -> States | None:
        try:
            return disk.get(key)
        except BrokenEntryError as error:
            self._warn_once("broken", f"{error}; it was set aside and is computed anew")
        except NewerEntryError as error:
            self._warn_once("newer", f"{error}; it is computed anew and left as it is")
        except OSError as error:
            self._warn_once("reading", f"documents in {self.folder} cannot be read: {error}; they are computed anew")
        return None

    def _count(self, where: str, tokens: str, count: int) -> None:
        with self._lock:
            self._counts[where] += 1
            self._counts[tokens] += count

    def __repr__(self) -> str:
        return f"DocumentCache({len(self._memory)} entries, {size_text(self._memory.nbytes)}, folder={self.folder})"


def _path(folder: str | Path) -> Path:
    if not isinstance(folder, (str, Path)) or not str(folder):
        raise ArgumentError(f"folder={shown(folder)}; expected the path of a folder, or None")
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # no such user
        raise ArgumentError(f"folder={shown(str(folder))}: {error}") from error
