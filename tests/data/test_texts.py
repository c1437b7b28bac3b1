"""Text files as the documents of ``ragbias ask``."""

import os

import pytest

from ragbias.data.texts import read_chunks
from ragbias.errors import DataError


def test_chunks_are_paragraphs_joined_up_to_the_size(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\n\n\n" + "x" * 20)
    (tmp_path / "b.md").write_text("one\n\ntwo")
    (tmp_path / "c.py").write_text("code")
    assert read_chunks(tmp_path, size=20) == {"one\n\ntwo": "a.txt", "x" * 20: "a.txt"}  # both files have the first


def test_chunks_name_files_as_given_and_suffixes_ignore_case(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "A.TXT").write_text("one")
    assert read_chunks(tmp_path) == {"one": os.path.join("old", "A.TXT")}
    assert read_chunks(tmp_path / "old" / "A.TXT") == {"one": "A.TXT"}


def test_long_paragraphs_are_cut_at_sentences_or_words(tmp_path):
    (tmp_path / "a.txt").write_text("One sentence. And another one that is long.\n\n" + "y" * 25)
    cut = ["One sentence.", "And another one that", "is long.", "y" * 20, "y" * 5]
    assert list(read_chunks(tmp_path, size=20)) == cut


def test_texts_without_spaces_are_cut_and_lose_nothing(tmp_path):
    (tmp_path / "a.txt").write_text("海" * 45)
    assert list(read_chunks(tmp_path, size=20)) == ["海" * 20, "海" * 5]  # equal chunks are one


def test_a_byte_order_mark_is_no_text(tmp_path):
    (tmp_path / "A.TXT").write_bytes(b"\xef\xbb\xbfone")
    assert read_chunks(tmp_path) == {"one": "A.TXT"}


def test_folders_and_pipes_named_like_texts_are_left_out(tmp_path):
    (tmp_path / "notes.md").mkdir()
    (tmp_path / "notes.md" / "a.txt").write_text("inside")
    os.mkfifo(tmp_path / "pipe.txt")
    assert list(read_chunks(tmp_path)) == ["inside"]


def test_what_is_no_text_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"a\.txt is not UTF-8 text"):
        read_chunks(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(DataError, match="contains no text"):
        read_chunks(tmp_path)
