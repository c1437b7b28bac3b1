"""The folder of a run, as a bench writes it."""

import gzip
import multiprocessing

import pytest

from ragbias.errors import DataError, MethodError, RunError
from ragbias_eval.runs import Record, as_json_lines, check_folder_contents, locked_store

ABOUT = {"decides": {"methods": "none", "limit": 3}, "settings": {"workers": 2}}


def record(name, prediction="An Ü"):
    return Record(name, "tiny", "tiny", "none", "q", "", 3, 0, 0, 0, prediction, 1.0, 9, 2, 0.1, "none")


def test_records_are_read_again_and_none_is_written_twice(tmp_path):
    with locked_store(tmp_path / "run", ABOUT) as store:
        assert store.records.append([record("a"), record("b")]) == 2
    with locked_store(tmp_path / "run", {**ABOUT, "settings": {"workers": 9}}) as store:
        assert list(store.records.by_key.values()) == [record("a"), record("b")]
        assert store.records.append([record("b", "other"), record("c")]) == 1
    assert (tmp_path / "run" / "rows.jsonl").read_text() == as_json_lines([record("a"), record("b"), record("c")])


def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(tmp_path):
    whole = as_json_lines([record("a"), record("b")]).encode()
    first = whole.index(b"\n") + 1
    for end in (1, first - 1, first, first + 1, whole.index("Ü".encode(), first) + 1, len(whole) - 1):
        with locked_store(tmp_path / "run", ABOUT):
            (tmp_path / "run" / "rows.jsonl").write_bytes(whole[:end])
        with locked_store(tmp_path / "run", ABOUT) as store:
            assert list(store.records.by_key) == [record("a").key] * (end >= first)
            store.records.append([record("a"), record("b")])
        assert (tmp_path / "run" / "rows.jsonl").read_bytes() == whole


def test_records_are_put_in_the_order_of_the_plan(tmp_path):
    with locked_store(tmp_path / "run", ABOUT) as store:
        store.records.append([record("beside"), record("b"), record("a")])
        store.records.sort([record("a").key, record("b").key])
    assert (tmp_path / "run" / "rows.jsonl").read_text() == as_json_lines([record("a"), record("b"), record("beside")])


def test_another_run_is_refused_by_what_differs(tmp_path):
    with locked_store(tmp_path / "run", ABOUT) as store:
        store.records.append([record("a")])
    other = {"decides": {"methods": "none,pine", "limit": 3}}
    with pytest.raises(RunError, match=r"run contains another run \(methods was 'none' and is 'none,pine' now\)"):
        locked_store(tmp_path / "run", other).__enter__()


def test_a_run_goes_on_with_more_questions_and_never_with_fewer(tmp_path):
    folder = tmp_path / "run"
    with locked_store(folder, ABOUT) as store:
        store.records.append([record("a")])
        store.write("summary.json", {"results": []})
    with locked_store(folder, {"decides": {"methods": "none", "limit": 5}}) as store:
        assert list(store.records.by_key.values()) == [record("a")]
    assert not (folder / "summary.json").exists()
    for limit in (3, None):
        with pytest.raises(RunError, match=rf"contains another run \(limit was 5 and is {limit} now\)"):
            locked_store(folder, {"decides": {"methods": "none", "limit": limit}}).__enter__()
    with pytest.raises(RunError, match=r"limit was 5 and is 6 now; methods was"):
        locked_store(folder, {"decides": {"methods": "pine", "limit": 6}}).__enter__()


def test_files_and_foreign_folders_are_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match=r"contains 'thesis\.tex' but no run"):
        check_folder_contents(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        locked_store(tmp_path / "thesis.tex", ABOUT).__enter__()


@pytest.mark.parametrize("name", ["rows.jsonl", "noise.jsonl"])
def test_a_run_of_compressed_answers_is_refused_until_unpacked(tmp_path, name):
    folder = tmp_path / "run"
    with locked_store(folder, ABOUT) as store:
        store.records.append([record("a")])
    plain, packed = folder / name, folder / f"{name}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    with pytest.raises(
        RunError, match=rf"run contains {name}\.gz: .*; give a new folder, or unpack it with gunzip first"
    ):
        check_folder_contents(folder)
    assert not plain.exists()
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    with locked_store(folder, ABOUT) as store:
        assert list(store.records.by_key.values()) == [record("a")]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"settings": {}}', '{"decides": null}', "[" * 100_000])
def test_damaged_settings_are_refused(tmp_path, content):
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(DataError, match=r"settings\.json is damaged"):
        locked_store(tmp_path, ABOUT).__enter__()


def test_a_damaged_record_in_the_middle_is_refused(tmp_path):
    with locked_store(tmp_path / "run", ABOUT) as store:
        store.records.append([record("a")])
    file = tmp_path / "run" / "rows.jsonl"
    file.write_text("{no json\n" + file.read_text())
    with pytest.raises(DataError, match=r"rows\.jsonl, line 1: Invalid JSON"):
        locked_store(tmp_path / "run", ABOUT).__enter__()


def hold(folder, held, done):
    with locked_store(folder, ABOUT):
        held.set()
        done.wait(30)


def test_a_second_process_is_refused_until_the_first_has_ended(tmp_path):
    fork = multiprocessing.get_context("fork")
    held, done = fork.Event(), fork.Event()
    process = fork.Process(target=hold, args=(tmp_path / "run", held, done))
    process.start()
    assert held.wait(30)
    with pytest.raises(RunError, match="another process writes to it"):
        locked_store(tmp_path / "run", ABOUT).__enter__()
    done.set()
    process.join()
    with locked_store(tmp_path / "run", ABOUT):
        pass


def test_a_failed_run_keeps_its_records(tmp_path):
    with pytest.raises(MethodError, match="refused"), locked_store(tmp_path / "run", ABOUT) as store:
        store.records.append([record("a")])
        raise MethodError("refused")
    with locked_store(tmp_path / "run", ABOUT) as store:
        assert list(store.records.by_key) == [record("a").key]


def test_a_folder_killed_before_its_first_record_is_reusable(tmp_path):
    with locked_store(tmp_path / "run", ABOUT):
        pass
    other = {"decides": {"methods": "none,pine", "limit": 3}}
    with locked_store(tmp_path / "run", other) as store:
        store.records.append([record("a")])
    with pytest.raises(RunError, match="contains another run"):
        locked_store(tmp_path / "run", ABOUT).__enter__()
