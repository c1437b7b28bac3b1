"""Several processes, kills and a full disk leave a shared folder correct, without crashes or stray files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ragbias.cache import DocumentCache, stores
from ragbias.cache.stores import SPARE
from ragbias.errors import DocumentCacheWarning
from support import cache_hammer

SIZE = cache_hammer.states(0).nbytes
BUDGET = 6 * SIZE  # half of the entries


def hammer(folder, kills, *uses):
    """Use the folder in one process per count, and kill ``kills`` more processes."""
    command = [sys.executable, cache_hammer.__file__, *map(str, (folder, BUDGET, kills, *uses))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


def all_right(folder, budget=BUDGET):
    """Whether every file is a complete entry with the right bits."""
    cache = DocumentCache(None, folder, budget)  # which removes what killed processes left half-written
    assert cache.verify() == {} and cache.stats().broken == 0
    names = [path.name for path in Path(folder).iterdir()]
    assert [name for name in names if not name.endswith(".states.safetensors")] == []
    for name in names:
        entry = int(name.removesuffix(".states.safetensors").removeprefix("m-"))
        found = cache.get(f"m-{entry}")
        assert found is not None and cache_hammer.is_right(found, entry)
    return cache.stats()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks its processes")
def test_processes_on_one_folder_read_right_bits_within_budget(tmp_path):
    hammer(tmp_path, 0, 120, 120)
    found = all_right(tmp_path)
    assert 0 < found.disk_bytes <= BUDGET * (1 + 2 * SPARE) + 2 * 1.1 * SIZE


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills what it forks")
def test_fifty_random_kills_leave_only_whole_entries(tmp_path, monkeypatch):
    hammer(tmp_path, 50, 200)
    monkeypatch.setattr(stores, "ABANDONED", -1)  # all processes have ended
    assert all_right(tmp_path).disk_entries > 0


@pytest.fixture
def disk_of_one_megabyte(tmp_path):
    """A separate file system, if this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("this user may mount nothing")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_of_one_megabyte_that_runs_full_breaks_nothing(disk_of_one_megabyte):
    cache = DocumentCache(None, disk_of_one_megabyte, "1GB")
    with pytest.warns(DocumentCacheWarning, match="requests run without the cache") as caught:
        cache_hammer.fill(cache, 30)
    assert len(caught) == 1
    found = all_right(disk_of_one_megabyte)
    assert 10 < found.disk_entries < 30
