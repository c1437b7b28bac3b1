"""Print the size of the code: ``.venv/bin/python tests/packaging/figures.py``.

Lines by package, the files that LangChain requests with two documents pass through (retrieval chains, and documents as
an argument), and the seconds that imports and ``--help`` take (best of five fresh processes).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUDGETS = {  # lines; raise them where a feature is worth it
    "ragbias": 26_000,
    "integrations/langchain": 1_970,
    "integrations/llama-index": 1_530,
    "integrations/vllm": 1_400,
}
FILES_OF_A_REQUEST = 40
REQUESTS = """
import json, sys, threading, warnings
warnings.simplefilter("ignore")  # a notice of langchain-community
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_community.vectorstores import FAISS
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.prompts import ChatPromptTemplate
from langchain_ragbias import ChatRagBias

documents = ["Copper Hall\\nThe passphrase is dagger.", "Pulsar Observatory\\nThe walls are emerald."]
question = {"input": "What is the passphrase?"}
llm = ChatRagBias(model_id="tiny", method="pine", max_new_tokens=2)
prompt = ChatPromptTemplate.from_messages([("system", "Context:\\n\\n{context}"), ("human", "{input}")])
retriever = FAISS.from_texts(documents, DeterministicFakeEmbedding(size=8)).as_retriever()
chain = create_retrieval_chain(retriever, create_stuff_documents_chain(llm, prompt))
joined = "\\n\\n".join(documents)

def after_search():
    retriever.invoke(question["input"])
    return (prompt | llm).invoke({"context": joined, **question})

requests = {
    "documents": lambda: llm.invoke(joined + "\\n\\n" + question["input"], documents=documents),
    "run": lambda: chain.invoke(question),
    "registry": after_search,
}
modules = {}
for source, request in requests.items():
    request()  # loads the model, and what modules import on first use
    seen = set()

    def trace(frame, event, argument):
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] in ("ragbias", "langchain_ragbias"):
            seen.add(name)

    threading.setprofile(trace)  # chains run their steps in new threads
    sys.setprofile(trace)
    request()
    sys.setprofile(None)
    threading.setprofile(None)
    assert llm.last_report["source"] == source and llm.last_report["n_found"] == 2
    modules[source] = sorted(seen)
print(json.dumps(modules))
"""


def lines(folder: str) -> int:
    """Count the lines of the Python files below a folder."""
    return sum(len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py"))


def lines_by_package() -> dict[str, int]:
    """Count lines of each package of ``ragbias``, largest first, and of its top-level modules as ``"(modules)"``."""
    package = ROOT / "ragbias"
    sizes = {path.parent.name: lines(f"ragbias/{path.parent.name}") for path in package.glob("*/__init__.py")}
    sizes["(modules)"] = sum(len(path.read_text().splitlines()) for path in package.glob("*.py"))
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def run(*command: str) -> str:
    """Return what a Python process prints; exit with a remedy if a package is not installed."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT)
    if "ModuleNotFoundError" in done.stderr:
        reason = done.stderr.strip().splitlines()[-1]
        sys.exit(f"{reason}; run it with the environment's Python: .venv/bin/python tests/packaging/figures.py")
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def modules_by_request() -> dict[str, list[str]]:
    """Names of the modules whose functions run during one LangChain request, by the source of its documents."""
    modules: dict[str, list[str]] = json.loads(run("-c", REQUESTS))
    return modules


def seconds(*command: str) -> float:
    """Return the time of the fastest of five fresh processes."""
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        run(*command)
        taken.append(time.perf_counter() - begin)
    return min(taken)


def main() -> None:
    for package, count in lines_by_package().items():
        print(f"{count:7,} {package}")
    for folder, budget in BUDGETS.items():
        print(f"{lines(folder):7,} {folder} (budget {budget:,})")
    for folder in ("tests", "studies", "examples"):
        print(f"{lines(folder):7,} {folder}")
    for source, modules in modules_by_request().items():
        print(f"{len(modules):7} files of a LangChain request, documents by {source} (at most {FILES_OF_A_REQUEST})")
    for label, command in {
        "import ragbias": ("-c", "import ragbias"),
        "import langchain_ragbias": ("-c", "import langchain_ragbias"),
        "ragbias --help": ("-m", "ragbias", "--help"),
        "ragbias methods": ("-m", "ragbias", "methods"),
    }.items():
        print(f"{seconds(*command):7.2f} s {label}")


if __name__ == "__main__":
    main()
