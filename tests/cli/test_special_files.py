"""Commands refuse pipes, devices and other special files, which might block forever."""

import os
import socket
import threading

import pytest

QUESTIONS = ["--questions", "{}"]
READERS = {
    "ask": ["ask", "q", "--documents", "{}", "--model", "tiny"],
    "audit": ["audit", "--model", "tiny", *QUESTIONS],
    "bench yaml": ["bench", "{}.yaml", "--out", "run"],
    "bench data": ["bench", "{}", "--model", "tiny", "--task", "mdqa", "--methods", "none", "--out", "run"],
    "bench model": ["bench", "--task", "tiny", "--methods", "none", "--model", "folder", "--out", "run"],
    "ask model": ["ask", "q", "--documents", "a.txt", "--model", "folder"],
    "method": ["ask", "q", "--documents", "a.txt", "--model", "tiny", "--method", "channel-scaling(profile={}.json)"],
    "calibrate": ["calibrate", "--model", "tiny", "--out", "p.json", "--data", "{}"],
    "report rows": ["report", "{}"],
}


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
            for pipe in ("p", "p.yaml", "p.json", "folder/config.json", "run/cost.json"):
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
    for name in ("p", "p.yaml", "p.json", "folder/config.json"):
        os.mkfifo(name)
    code, errors = ends_soon(cli, *(each.format("p") for each in arguments))
    assert code == 2 and errors.count("\n") == 1
    assert "p" in errors or "folder" in errors
    assert not (here / "run").exists() and not (here / "a.png").exists()


@pytest.mark.parametrize("name", ["READERS", "ask", "audit", "bench data", "bench yaml", "calibrate"][1:])
def test_devices_sockets_and_folders_are_refused(cli, here, name):
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("s")
        (here / "folder.yaml").mkdir()
        os.symlink("/dev/zero", "zero.yaml")
        os.symlink("s", "s.yaml")
        os.symlink("/dev/zero", "zero")
        for path in ("s", "zero", *(["folder"] if name != "ask" else [])):
            code, errors = ends_soon(cli, *(each.format(path) for each in READERS[name]))
            assert code == 2 and errors.count("\n") == 1 and path in errors
        assert not (here / "run").exists()


def test_an_output_to_a_pipe_that_nobody_reads_is_refused(cli, here):
    os.mkfifo("p")
    code, errors = ends_soon(cli, "methods", "--json", "p")
    assert code == 2 and "p is a named pipe; expected the name of a file" in errors


def test_an_endless_line_and_a_huge_text_are_refused(cli, here):
    for name in ("huge.txt", "huge.jsonl"):
        with open(name, "wb") as file:
            file.truncate(2**36)  # bytes of zeros that take no room on the disk
    code, errors = ends_soon(cli, "ask", "q", "--documents", "huge.txt", "--model", "tiny")
    assert code == 2 and "huge.txt is larger than 256 MiB" in errors
    code, errors = ends_soon(cli, "audit", "--model", "tiny", "--questions", "huge.jsonl")
    assert code == 2 and "huge.jsonl, line 1: longer than 256 MiB" in errors
