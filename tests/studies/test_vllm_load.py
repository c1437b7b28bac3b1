"""``python -m studies.vllm_load`` against the proxy and a plain server."""

import json
from pathlib import Path

import pytest

pytest.importorskip("ragbias_vllm")

from ragbias import DebiasedLM
from ragbias.models.loading import load_tokenizer
from studies.vllm_load import Requests, main
from support.live_server import listening_app, serving
from support.vllm_server import VllmServer, in_front_of


def test_requests_share_documents_as_their_kind_says():
    made = Requests(load_tokenizer("tiny", {}), 6, 40)
    seen: set[str] = set()
    for kind, shared in (("warm", 6), ("half", 3), ("cold", 0), ("warm", 6)):
        (_, first), (_, second) = made.of_kind(kind, 2)
        assert len(set(first) & set(second)) == shared and first != second
        assert len(set(first)) == 6 and (kind != "cold" or not seen & set(first))
        seen.update(first, second)


@pytest.mark.slow
def test_both_servers_are_measured_with_the_same_requests(tmp_path, capsys):
    out, lm = tmp_path / "load.json", DebiasedLM.from_pretrained("tiny", method="none")
    server = VllmServer(lm)
    few = ["--tokenizer", "tiny", "--documents", "4", "--document-tokens", "80", "--max-new-tokens", "3"]
    with listening_app(server.app) as upstream, in_front_of(upstream) as proxy, serving({"tiny": lm}) as stock:
        main(["--proxy", proxy, "--stock", stock, *few, "--clients", "1,2", "--json", str(out)])
    rows = json.loads(out.read_text())["results"]
    assert [(row["target"], row["clients"], row["documents"]) for row in rows] == [
        (label, clients, kind)
        for clients in (1, 2)
        for kind in ("warm", "half", "cold")
        for label in ("pcw in vLLM", "stock vLLM")
    ]
    assert all(row["requests"] == 2 * row["clients"] and row["errors"] == {} for row in rows)
    assert len(server.sent(store=True)) == 4 + (2 + 4) * (2 + 4)  # new documents: half or all of 2 + 4 requests
    assert "times the requests per second (warm, 2 clients)" in capsys.readouterr().out


def test_the_guide_has_the_figures_of_the_stored_runs():
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "how-to/vllm.md").read_text()
    rows = json.loads((docs / "results/vllm/load.json").read_text())["results"]
    assert {row["documents"] for row in rows} == {"warm", "half", "cold"} and not any(row["errors"] for row in rows)
    for ours, stock in zip(rows[::2], rows[1::2], strict=True):
        assert (ours["target"], stock["target"]) == ("pcw in vLLM", "stock vLLM")
        cells = [f"{each['requests_per_second']:.2f}" for each in (ours, stock)]
        cells += [f"{each['first_seconds']['p50']:.2f} s" for each in (ours, stock)]
        assert f"| {ours['clients']} | {ours['documents']} | {' | '.join(cells)} |" in page
    soak = [json.loads(line) for line in (docs / "results/vllm/soak.jsonl").read_text().splitlines()]
    assert soak[-1]["answers"] == 2_000 and all(row["different"] == row["blocks_in_use"] == 0 for row in soak)
    memory = [row["mb"]["VLLM::Worker"] for row in soak if row["answers"] >= 200]
    growth = f"the first 200 answers, the memory of vLLM's worker process grew by {memory[-1] / memory[0] - 1:.1%}"
    assert growth in page.replace("\n", " ")
