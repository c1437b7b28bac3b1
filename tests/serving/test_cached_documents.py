"""A server with a document cache: equal answers, and less computation from the second request on."""

import httpx
import openai
import pytest
from serving.conftest import DOCUMENTS, QUESTION

from ragbias.boundaries import locate
from ragbias.errors import ArgumentError
from ragbias.frameworks.remote import RemoteLM
from ragbias.generation import GenerationSettings
from ragbias.serving.models import ModelSettings
from support.live_server import serving


@pytest.mark.parametrize("method", ["ape", "mixture"])
def test_documents_are_computed_once_and_answers_stay_the_same(tmp_path, method):
    prompts = ["\n\n".join([*documents, QUESTION]) for documents in (DOCUMENTS, DOCUMENTS[::-1])]
    body = {"documents": DOCUMENTS, "ragbias": {"method": method}}
    request = {"model": "tiny", "max_tokens": 4, "logprobs": 0, "extra_body": body}
    found = {}
    for name, folder in (("kept", tmp_path), ("fresh", None)):
        models = ModelSettings(model="tiny", cache=None if folder is None else str(folder)).load()
        with serving(models) as address, openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client:
            found[name] = [client.completions.create(**request, prompt=prompt) for prompt in prompts]
            assert {answer.model_extra["ragbias"]["method_ran"] for answer in found[name]} == {method}
            metrics = httpx.get(f"{address}/metrics").text
        counts = [answer.usage.prompt_tokens_details.cached_tokens for answer in found[name]]
        begins = (len(DOCUMENTS) - 1) * (method == "mixture" and name == "kept")  # later prompts reuse the BOS token
        assert counts[0] == begins and (counts[1] > begins) == (name == "kept")
        assert f'ragbias_cached_tokens_total{{model="tiny"}} {float(sum(counts))}' in metrics
    logprobs = [answer.choices[0].logprobs.token_logprobs for answers in found.values() for answer in answers]
    assert all(each == logprobs[0] for each in logprobs)


def test_a_remote_model_reports_cached_tokens():
    with serving(ModelSettings(model="tiny", cache_memory="1MB").load()) as address:
        remote = RemoteLM(address, method="pcw")
        text = "\n\n".join([*DOCUMENTS, QUESTION])
        request = remote.prepare(text, boundaries=locate(text, documents=DOCUMENTS))
        answers = [remote.answer([request], GenerationSettings(max_new_tokens=2))[0] for _ in range(2)]
    cached = [answer.usage.cached_tokens for answer in answers]
    assert cached[0] == 0 < cached[1] == answers[1].report.cached_tokens


def test_tenants_do_not_share_cached_documents():
    models = ModelSettings(model="tiny", cache_memory="4MB").load()
    keys = [{"authorization": f"Bearer {name}"} for name in ("a", "b")]
    body = {"model": "tiny", "prompt": "\n\n".join([*DOCUMENTS, QUESTION]), "max_tokens": 1, "documents": DOCUMENTS}
    body["ragbias"] = {"method": "ape"}

    def cached(address: str, headers: dict[str, str], **fields: str) -> int:
        answer = httpx.post(f"{address}/v1/completions", json={**body, **fields}, headers=headers).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    with serving(models, api_key="a\nb") as address:
        assert [cached(address, key) > 0 for key in (keys[0], keys[1], keys[0], keys[1])] == [False, False, True, True]
        assert cached(address, keys[0], prompt_cache_key="x") == 0 < cached(address, keys[0], prompt_cache_key="x")
    with serving(models, tenant_header="x-tenant") as address:
        assert [cached(address, {"X-Tenant": name}) > 0 for name in ("m", "n", "m")] == [False, False, True]
        refused = httpx.post(f"{address}/v1/completions", json=body)
        assert refused.status_code == 400 and "header x-tenant is missing" in refused.json()["error"]["message"]
    with serving(models, api_key="a\nb", share_cache=True) as address:
        assert cached(address, keys[0]) == 0 < cached(address, keys[1])


def test_nonsense_is_refused_before_a_model_is_loaded(tmp_path):
    assert ModelSettings(model="tiny").document_cache() is None
    with pytest.raises(ArgumentError, match="memory"):
        ModelSettings(model="tiny", cache=str(tmp_path), cache_memory="much").document_cache()
