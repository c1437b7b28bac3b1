"""``ragbias load`` against real servers."""

from __future__ import annotations

import json

import pytest

from ragbias import DebiasedLM
from support.live_server import serving


@pytest.mark.slow
def test_each_target_is_measured_with_each_number_of_clients(cli, tmp_path):
    out, lm = tmp_path / "load.json", DebiasedLM.from_pretrained("tiny")
    few = ["--clients", "1,3", "--requests", 2, "--rounds", 2, "--documents", 3, "--distinct", 2, "--max-new-tokens", 3]
    with serving({"tiny": lm}, api_key="k") as address, serving({"other": lm}, api_key="k") as other:
        given = ["--url", f"{address}/v1", "--against", other, "--api-key", "k", "--methods", "none,ape(scale=0.5)"]
        code, said, errors = cli("load", *given, *few, "--json", out)
    assert code == 0, errors
    found = json.loads(out.read_text())
    assert '"k"' not in out.read_text()
    assert [(each["target"], each["clients"]) for each in found["results"]] == [
        (label, count) for count in (1, 3) for label in ("none", "ape(scale=0.5)", "against")
    ]
    for each in found["results"]:
        assert each["requests"] == 4 and each["errors"] == {} and each["requests_per_second"] > 0
        assert each["first_seconds"]["p50"] <= each["whole_seconds"]["p50"] <= each["whole_seconds"]["p99"]
    with serving({"tiny": lm}) as address:
        code, *_ = cli("load", "--url", address, "--methods", "none", *few, "--no-stream", "--json", out)
    assert code == 0
    assert all(each["first_seconds"] is None for each in json.loads(out.read_text())["results"])
    assert "requests/s" in said


def test_a_server_that_is_not_there_or_refuses_is_told(cli):
    code, _, errors = cli("load", "--url", "http://127.0.0.1:9", "--model", "m", "--clients", "1", "--requests", 1)
    assert code == 2 and "answers nothing: ConnectError" in " ".join(errors.split())
