"""Entries in a folder are complete or absent, whatever happens to the files."""

import copy
import os
import pickle

import pytest
import torch

from ragbias import DebiasedLM
from ragbias.cache import DocumentCache
from ragbias.cache.document_cache import parse_size
from ragbias.cache.stores import FolderStore, States, write_entry
from ragbias.errors import ArgumentError, DocumentCacheWarning


def states(seed=0, tokens=5, dtype=torch.float32):
    torch.manual_seed(seed)
    return States(*(tuple(torch.randn(2, tokens, 8).to(dtype) for _ in range(3)) for _ in range(2)))


def equal(left, right):
    return all(map(torch.equal, (*left.keys, *left.values), (*right.keys, *right.values)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_was_written_is_read_by_another_cache(tmp_path, dtype):
    FolderStore(tmp_path, 10**6).put("model-a", states(dtype=dtype))
    found = FolderStore(tmp_path, 10**6).get("model-a")
    assert equal(found, states(dtype=dtype)) and found.keys[0].dtype == dtype


@pytest.mark.parametrize("at", [3, 40, 300, -1])
def test_a_file_with_a_flipped_bit_is_set_aside_and_recomputed(tmp_path, at):
    DocumentCache(memory=None, folder=tmp_path).put("model-a", states())
    path = tmp_path / "model-a.states.safetensors"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    cache = DocumentCache(memory=None, folder=tmp_path)
    with pytest.warns(DocumentCacheWarning, match="renamed, and its entry is computed again"):
        assert cache.get("model-a") is None
    assert cache.stats().broken == 1 and cache.stats().disk_entries == 0
    cache.put("model-a", states())
    assert equal(cache.get("model-a"), states())


def test_truncated_and_renamed_files_are_no_entries(tmp_path):
    cache = DocumentCache(memory=None, folder=tmp_path)
    cache.put("model-a", states())
    whole = (tmp_path / "model-a.states.safetensors").read_bytes()
    (tmp_path / "model-b.states.safetensors").write_bytes(whole)
    (tmp_path / "model-c.states.safetensors").write_bytes(whole[:-7])
    assert set(cache.verify()) == {tmp_path / "model-b.states.safetensors", tmp_path / "model-c.states.safetensors"}
    with pytest.warns(DocumentCacheWarning):
        assert cache.get("model-b") is None and cache.get("model-c") is None
    assert equal(cache.get("model-a"), states())


def test_a_file_that_another_process_has_removed_is_not_broken(tmp_path, recwarn):
    cache = DocumentCache(memory=None, folder=tmp_path)
    cache.put("model-a", states())
    (tmp_path / "model-a.states.safetensors").unlink()
    assert cache.get("model-a") is None and cache.stats().broken == 0 and not recwarn.list


@pytest.mark.parametrize("content", [b"", b"[]", b"\2\0\0\0\0\0\0\0[]", b"\2\0\0\0\0\0\0\0{}"], ids=len)
def test_a_file_that_is_no_entry_is_set_aside(tmp_path, content):
    (tmp_path / "model-a.states.safetensors").write_bytes(content)
    with pytest.warns(DocumentCacheWarning, match="renamed, and its entry is computed again"):
        assert DocumentCache(memory=None, folder=tmp_path).get("model-a") is None


@pytest.mark.parametrize("change", ["fewer tensors", "fewer tokens"])
def test_an_entry_of_other_shapes_is_set_aside(tmp_path, change):
    entry = states(tokens=4) if change == "fewer tokens" else States(states().keys[:2], states().values[:2])
    FolderStore(tmp_path, 10**6).put("model-a", entry)  # with the right checksum
    cache = DocumentCache(memory=None, folder=tmp_path)
    with pytest.warns(
        DocumentCacheWarning, match="does not fit: .*; the file was renamed, and its entry is computed again"
    ):
        assert cache.get("model-a", [(2, 5, 8)] * 3) is None
    cache.put("model-a", states())
    assert equal(cache.get("model-a", [(2, 5, 8)] * 3), states())


def test_pipes_and_loops_of_links_in_the_folder_are_no_entries(tmp_path):
    os.mkfifo(tmp_path / "model-a.states.safetensors")
    (tmp_path / "model-b.states.safetensors").symlink_to("model-b.states.safetensors")
    cache = DocumentCache(memory=None, folder=tmp_path)
    assert cache.stats().disk_entries == 0 and cache.verify() == {}
    with pytest.warns(DocumentCacheWarning, match="is a named pipe; it was renamed|symbolic links"):
        assert cache.get("model-a") is None and cache.get("model-b") is None
    for key in ("model-a", "model-b"):
        cache.put(key, states())
        assert equal(cache.get(key), states())


def test_entries_are_readable_by_their_owner_only(tmp_path):
    DocumentCache(memory=None, folder=tmp_path).put("model-a", states())
    assert (tmp_path / "model-a.states.safetensors").stat().st_mode & 0o777 == 0o600


def test_a_full_folder_is_not_listed_at_each_put(tmp_path, monkeypatch):
    write_entry(tmp_path / "m-x.safetensors", "m-x", states())
    size = (tmp_path / "m-x.safetensors").stat().st_size
    store, files, listings = FolderStore(tmp_path / "many", 100 * size), FolderStore.files, []
    monkeypatch.setattr(FolderStore, "files", lambda self: listings.append(1) or files(self))
    for at in range(200):
        store.put(f"m-{at}", states())
    assert len(listings) < 60 and 90 < len(list(files(store))) <= 100


def test_a_cache_says_that_it_cannot_be_pickled_or_copied(lm):
    cached = DebiasedLM(lm.model, lm.tokenizer, cache=DocumentCache())
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="a DocumentCache, or a model with one, cannot be pickled"):
            copied(cached)


def test_the_least_recently_used_leave_when_the_budget_is_full(tmp_path):
    write_entry(tmp_path / "m-x.safetensors", "m-x", states())
    size = (tmp_path / "m-x.safetensors").stat().st_size
    store = FolderStore(tmp_path / "many", 3 * size)
    for at, key in enumerate(("m-a", "m-b", "m-c")):
        store.put(key, states(at))
        os.utime(tmp_path / "many" / f"{key}.states.safetensors", (at, at))
    assert equal(store.get("m-a"), states(0))  # now the last used
    store.put("m-d", states(3))
    assert {path.name.partition(".")[0] for path, _, _ in store.files()} == {"m-a", "m-c", "m-d"}
    assert sum(size for _, _, size in store.files()) <= 3 * size


def test_an_entry_larger_than_the_budget_is_not_cached(tmp_path):
    cache = DocumentCache(memory=10, folder=tmp_path, disk=10)
    cache.put("m-a", states())
    assert cache.get("m-a") is None and cache.stats().misses == 1


def put_all(cache, keys):
    for key in keys:
        cache.put(key, states(1))


def test_files_that_are_no_entries_are_never_counted_or_removed(tmp_path):
    own = {tmp_path / name for name in ("model.safetensors", "notes.broken", "model-a.safetensors")}
    for path in own:
        path.write_bytes(b"weights" * 500)
    cache = DocumentCache(memory=None, folder=tmp_path, disk=3000)
    for at in range(3):
        cache.put(f"m-{at}", states(at))
    assert cache.stats().disk_entries == 1 and cache.stats().broken == 0 and cache.verify() == {}
    cache.clear()
    assert set(tmp_path.iterdir()) == own


def test_what_was_read_stays_as_it_was_when_its_file_changes(tmp_path):
    DocumentCache(memory=None, folder=tmp_path).put("model-a", states())
    cache = DocumentCache(folder=tmp_path)
    found = cache.get("model-a")
    path = next(tmp_path.iterdir())
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\x55" * 100)
    assert equal(found, states()) and equal(cache.get("model-a"), states())


@pytest.fixture
def small_disk():
    """Limit files to 1 kB, so that writes fail as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_warns_once_and_leaves_nothing(tmp_path, small_disk):
    cache = DocumentCache(folder=tmp_path)
    with pytest.warns(DocumentCacheWarning, match="not cached in .*; requests run without the cache") as caught:
        put_all(cache, ["m-a", "m-b"])
    assert len(caught) == 1 and list(tmp_path.iterdir()) == []
    assert equal(cache.get("m-b"), states(1))  # from memory


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"memory": 0}, "memory=0; expected more than zero bytes"),
        ({"memory": "many"}, "memory='many'; expected a number of bytes"),
        ({"memory": -3}, "expected more than zero bytes"),
        ({"memory": True}, "expected a number of bytes"),
        ({"memory": None}, "cache nothing"),
        ({"folder": "f", "portable": "false"}, "portable=.false.; expected True or False"),
        ({"disk": "1GB"}, "without a folder"),
        ({"memory": "9" * 400 + "GB"}, "at most"),
        ({"folder": "/proc/nothing", "disk": "1GB"}, "expected a folder to write to"),
        ({"folder": "a\0b"}, "expected a folder to write to"),
        ({"folder": "~no-such-user/kept"}, "home directory"),
        ({"folder": ""}, "expected the path of a folder"),
        ({"folder": 3}, "expected the path of a folder"),
    ],
)
def test_wrong_budgets_and_folders_are_named(given, expected):
    with pytest.raises(ArgumentError, match=expected):
        DocumentCache(**given)


def test_amounts_may_be_written_as_people_write_them():
    assert [parse_size("memory", given) for given in ("4GB", "1.5 MiB", "200k", 7)] == [4 * 10**9, 1572864, 200_000, 7]
