"""Commands refuse pipes, devices and other special files, which might block forever."""

import os
import socket
import threading

import pytest

READERS = {"bench yaml": ["bench", "{}.yaml", "--out", "run"]}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("Heron Mill opens in spring.")
    (tmp_path / "folder").mkdir()
    return tmp_path


def ends_soon(cli, *arguments):
    """Return the exit code and error of a command. The pipe is closed after a while, so that the test ends."""
    waited = threading.Event()

    def release():
        if not ended.wait(30):
            waited.set()
            for pipe in ("p", "p.yaml", "p.json", "run/cost.json"):
                if os.path.exists(pipe):
                    os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))

    ended = threading.Event()
    thread = threading.Thread(target=release)
    thread.start()
    try:
        code, _, errors = cli(*arguments)
    finally:
        ended.set()
        thread.join()
    assert not waited.is_set()
    return code, errors


@pytest.mark.parametrize("arguments", READERS.values(), ids=READERS)
def test_a_named_pipe_is_refused_and_named(cli, here, arguments):
    for name in ("p", "p.yaml", "p.json"):
        os.mkfifo(name)
    code, errors = ends_soon(cli, *(each.format("p") for each in arguments))
    assert code == 2 and errors.count("\n") == 1
    assert "p" in errors
    assert not (here / "run").exists() and not (here / "a.png").exists()


@pytest.mark.parametrize("name", ["bench yaml"])
def test_devices_sockets_and_folders_are_refused(cli, here, name):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("s")
        (here / "folder.yaml").mkdir()
        os.symlink("/dev/zero", "zero.yaml")
        os.symlink("s", "s.yaml")
        os.symlink("/dev/zero", "zero")
        for path in ("s", "zero", "folder"):
            code, errors = ends_soon(cli, *(each.format(path) for each in READERS[name]))
            assert code == 2 and errors.count("\n") == 1 and path in errors
        assert not (here / "run").exists()
