"""Measure the share of prompt tokens that are cached by two Ray Serve replicas, with and without affinity.

    python -m studies.affinity

Affinity sends requests with the same documents to the same replica. Each set of documents is requested several times,
each time in another order.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import ray
from ray import serve

from ragbias.models.tiny.world import held_out_corpus
from ragbias.serving.ray_serve import Cluster, ReplicatedModel, build, start
from ragbias.serving.run import open_listener
from studies import arguments_of

QUESTION = [{"role": "user", "content": "Which of them is the oldest?"}]


def measure_cached_share(affinity: bool, sets: int, times: int, documents: int, memory: str, clients: int) -> float:
    """Measure the share of cached prompt tokens over all requests."""
    corpus = [f"{passage.title}\n{passage.text}" for passage in held_out_corpus(sets * documents, seed=0)]
    draw = random.Random(0)
    requests = [
        draw.sample(corpus[begin : begin + documents], documents)
        for _ in range(times)
        for begin in range(0, sets * documents, documents)
    ]
    with open_listener("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    model = ReplicatedModel(
        model="tiny", method="ape", replicas=2, num_cpus=0.5, cache_memory=memory, affinity=affinity
    )
    cluster = Cluster(models=[model])
    start(cluster, "127.0.0.1", port)
    serve.run(build(cluster), name="ragbias", route_prefix="/")

    def counts(ordered: list[str]) -> tuple[int, int]:
        body = {"model": "tiny", "messages": QUESTION, "documents": ordered, "max_tokens": 1}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=120)
        usage = answer.raise_for_status().json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    try:
        with ThreadPoolExecutor(clients) as pool:
            cached, tokens = zip(*pool.map(counts, requests), strict=True)
    finally:
        serve.shutdown()
        ray.shutdown()
    return sum(cached) / sum(tokens)


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--sets", type=int, default=40, help="sets of documents")
    parser.add_argument("--times", type=int, default=4, help="requests per set")
    parser.add_argument("--documents", type=int, default=5, help="documents per set")
    parser.add_argument("--memory", default="1GB", help="size of each replica's cache")
    parser.add_argument("--clients", type=int, default=4, help="concurrent requests")
    arguments = vars(parser.parse_args())
    for affinity in (True, False):
        print(
            f"{'by documents' if affinity else 'by load':14}{measure_cached_share(affinity, **arguments):.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
