"""``python -m studies.load`` against real servers."""

import json

import pytest

from ragbias import DebiasedLM
from ragbias.errors import RunError
from studies.load import main
from support.live_server import serving


@pytest.mark.slow
def test_each_target_is_measured_with_each_number_of_clients(tmp_path, capsys):
    out, lm = tmp_path / "load.json", DebiasedLM.from_pretrained("tiny", method="none")
    few = [
        "--clients", "1,3", "--requests", "2", "--rounds", "2", "--documents", "3", "--distinct", "2",
        "--max-new-tokens", "3",
    ]  # fmt: skip
    with serving({"tiny": lm}, api_key="k") as address, serving({"other": lm}, api_key="k") as other:
        given = ["--url", f"{address}/v1", "--against", other, "--api-key", "k", "--methods", "none,ape(scale=0.5)"]
        main([*given, *few, "--json", str(out)])
    found = json.loads(out.read_text())
    assert '"k"' not in out.read_text()
    assert [(each["target"], each["clients"]) for each in found["results"]] == [
        (label, count) for count in (1, 3) for label in ("none", "ape(scale=0.5)", "against")
    ]
    for each in found["results"]:
        assert each["requests"] == 4 and each["errors"] == {} and each["requests_per_second"] > 0
        assert each["first_seconds"]["p50"] <= each["whole_seconds"]["p50"] <= each["whole_seconds"]["p99"]
    with serving({"tiny": lm}) as address:
        main(["--url", address, "--methods", "none", *few, "--no-stream", "--json", str(out)])
    assert all(each["first_seconds"] is None for each in json.loads(out.read_text())["results"])
    assert "requests/s" in capsys.readouterr().out


def test_an_unreachable_server_is_reported():
    with pytest.raises(RunError, match="answers nothing: APIConnectionError"):
        main(["--url", "http://127.0.0.1:9", "--model", "m", "--clients", "1", "--requests", "1"])
