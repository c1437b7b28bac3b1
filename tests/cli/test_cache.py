"""``ragbias cache``: documents computed in advance, shown, and found by ``ragbias ask``."""

import json
from pathlib import Path

import pytest

TEXTS = Path(__file__).parents[2] / "examples" / "documents"


def test_chunks_are_warmed_once_checked_found_and_cleared(cli, tmp_path):
    folder, figures = tmp_path / "kept", tmp_path / "figures.json"
    warm = ("cache", "warm", folder, "--documents", TEXTS, "--model", "tiny")
    code, output, _ = cli(*warm, "--json", figures)
    entries = json.loads(figures.read_text())["disk_entries"]
    assert code == 0 and f"{entries - 1} chunks computed" in output  # the prefix is an entry, too
    assert "0 chunks computed" in cli(*warm)[1]
    assert f"{entries} entries (documents, and the texts before them), " in cli("cache", "stats", folder)[1]

    ask = ("ask", "Which gate?", "--documents", TEXTS, "--model", "tiny", "--max-new-tokens", 1)
    code, output, _ = cli(*ask, "--method", "ape", "--cache", folder)
    reused, total = (int(output.split(" tokens came from the cache")[0].split()[at]) for at in (-3, -1))
    assert code == 0 and total / 2 < reused < total

    assert cli("cache", "verify", folder)[0] == 0
    damaged = next(folder.glob("*.states.safetensors"))
    damaged.write_bytes(damaged.read_bytes()[:-3])
    code, output, _ = cli("cache", "verify", folder)
    assert code == 1 and f"1 of {entries} files are damaged" in output

    assert cli("cache", "clear", folder)[0] == 0
    assert not list(folder.iterdir())


@pytest.mark.parametrize("command", ["stats", "verify", "clear"])
def test_a_folder_that_is_not_there_is_named(cli, tmp_path, command):
    code, _, errors = cli("cache", command, tmp_path / "nothing")
    assert code == 2 and "is not a folder" in errors
