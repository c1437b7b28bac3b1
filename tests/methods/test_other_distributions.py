"""A method of another distribution runs by name: on the command line, in both integrations, in the bench."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DISTRIBUTION = Path(__file__).parent / "example_distribution"
INTEGRATIONS = """
from langchain_ragbias import ChatRagBias
from llama_index.llms.ragbias import RagBiasLLM
import ragbias

hall, observatory = "Copper Hall\\nThe passphrase is dagger.\\n\\n", "Pulsar Observatory\\nThe walls are emerald.\\n\\n"
documents = [hall, observatory]
text = "Context:\\n\\n" + "".join(documents) + "Question: What is the passphrase of Copper Hall?\\nAnswer:"
with ragbias.documents(documents):
    chat = ChatRagBias(model_id="tiny", method="reverse-order(keep=0)", max_new_tokens=2)
    print(chat.invoke(text).response_metadata["ragbias"]["order"])
    llm = RagBiasLLM(model_name="tiny", method="reverse-order", max_new_tokens=2)
    print(llm.complete(text).additional_kwargs["ragbias"]["order"])
"""

BROKEN = """
import sys
from ragbias.methods import Method

class Undeclared(Method):
    name, source = "broken-method", "a test"

def __getattr__(name):
    sys.exit(3)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a process in which the example distribution is installed."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(folder), str(DISTRIBUTION)], check=True, capture_output=True, timeout=120)
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


def run(environment: dict[str, str], *command: str, code: int = 0) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_it_is_listed_with_its_parameters(environment):
    assert "reverse-order" in run(environment, "-m", "ragbias", "methods")
    assert "ReverseOrder(keep=0" in run(environment, "-m", "ragbias", "methods", "reverse-order")
    assert "reverse-order" not in run({**os.environ}, "-m", "ragbias", "methods")


@pytest.mark.slow
def test_the_bench_runs_it_as_typed(environment, tmp_path):
    options = ["--documents", "4", "--limit", "1", "--positions", "0,3", "--no-cost", "--out", str(tmp_path / "run")]
    methods = "none,reverse-order,reverse-order(keep=1)"
    run(environment, "-m", "ragbias", "bench", "--model", "tiny", "--task", "tiny", "--methods", methods, *options)
    records = [json.loads(line) for line in (tmp_path / "run" / "rows.jsonl").read_text().splitlines()]
    shown = {(each["method"], each["gold_position"]): each["shown"] for each in records}
    for position in (0, 3):
        plain = shown["none", position]
        assert shown["reverse-order", position] == plain[::-1]
        assert shown["reverse-order(keep=1)", position] == plain[:1] + plain[1:][::-1]


@pytest.mark.slow
def test_both_integrations_take_its_name(environment):
    assert run(environment, "-c", INTEGRATIONS).splitlines()[:2] == ["[1, 0]", "[1, 0]"]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("ragbias_reverse_order:Missing", "cannot be imported: AttributeError"),
        ("json:dumps", "expected a class derived from ragbias.methods.Method"),
        ("ragbias.methods:Pine", "has the name 'pine'; expected the entry point's name"),
        ("broken_module:Exits", "cannot be imported: SystemExit: 3"),
        ("broken_module:Undeclared", "declares no acts_on, cost; see ragbias.methods.Method"),
    ],
)
def test_one_that_cannot_be_used_says_why(environment, tmp_path, value, complaint):
    (tmp_path / "broken_module.py").write_text(BROKEN)
    about = tmp_path / "broken-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[ragbias.methods]\nbroken-method = {value}\n")
    path = os.pathsep.join((str(tmp_path), environment["PYTHONPATH"]))
    ask = "from ragbias import methods; methods.get('pine'); methods.get('broken-method')"
    output = run({**environment, "PYTHONPATH": path}, "-c", ask, code=1)
    assert "method 'broken-method' of broken" in output and complaint in output
    assert complaint in run({**environment, "PYTHONPATH": path}, "-m", "ragbias", "methods", code=2)
