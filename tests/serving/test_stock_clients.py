"""Documents from clients without ragbias: the docs' snippets, and the fields that they send."""

import re
from pathlib import Path

import pytest
from serving.conftest import DOCUMENTS, QUESTION

PAGE = Path(__file__).parents[2] / "docs/how-to/serve.md"
SENT = {  # beside model, messages and documents, by these libraries in November 2026
    "haystack": {"n": 1, "stream": False},
    "dspy": {},
    "phoenix.evals": {},
    "deepeval": {"temperature": 0.0},
}


@pytest.mark.parametrize("library", SENT)
def test_documents_in_extra_fields_are_found(client, library):
    talk = [{"role": "user", "content": QUESTION}]
    extra = {"extra_body": {"documents": DOCUMENTS}}
    answer = client.chat.completions.create(model="tiny", messages=talk, max_tokens=2, **SENT[library], **extra)
    assert answer.model_extra["ragbias"]["n_found"] == 3 and answer.system_fingerprint == "pine, 3 documents"


@pytest.mark.parametrize("library", SENT)
def test_the_snippet_of_the_docs_runs(address, library, capsys):
    pytest.importorskip(library)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text().partition("## Other clients")[2], re.DOTALL)
    names = {"address": f"{address}/v1", "extra": {"extra_body": {"documents": DOCUMENTS}}}
    (block,) = (block for block in blocks if re.search(rf"^(from|import) {library}\b", block, re.MULTILINE))
    exec(block.replace("http://127.0.0.1:8000", address).replace("smollm2", "tiny"), names)
    assert capsys.readouterr().out.strip()
