"""Print the size of the code: ``.venv/bin/python tests/packaging/figures.py``.

Lines by package, the files that the first request of a process with two documents passes through (documents as an
argument, and retrieval chains), and the seconds that imports and ``--help`` take (best of five fresh processes).
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUDGETS = {  # lines; raise them in the commit of a feature that is worth it
    "ragbias": 20_200,
    "evaluation": 5_900,
    "integrations/langchain": 1_640,
    "integrations/llama-index": 1_350,
    "integrations/vllm": 1_451,
}
FILES_OF_A_REQUEST = 40
TRACED = """
import json, sys, threading, warnings
warnings.simplefilter("ignore")  # a notice of langchain-community
documents = ["Copper Hall\\nThe passphrase is dagger.", "Pulsar Observatory\\nThe walls are emerald."]
question = "What is the passphrase?"
joined = "\\n\\n".join(documents)
{request}
seen = set()

def trace(frame, event, argument):
    name = frame.f_globals.get("__name__", "")
    if f"{name}.".startswith(("ragbias.", "langchain_ragbias.", "llama_index.llms.ragbias.")):
        seen.add(name)

threading.setprofile(trace)  # chains run their steps in new threads
sys.setprofile(trace)
request()
sys.setprofile(None)
threading.setprofile(None)
assert llm.last_report["source"] == "{source}" and llm.last_report["n_found"] == 2
print(json.dumps(sorted(seen)))
"""
CHAIN = """
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_community.vectorstores import FAISS
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.prompts import ChatPromptTemplate
from langchain_ragbias import ChatRagBias

llm = ChatRagBias(model_id="tiny", method="pine", max_new_tokens=2)
prompt = ChatPromptTemplate.from_messages([("system", "Context:\\n\\n{context}"), ("human", "{input}")])
retriever = FAISS.from_texts(documents, DeterministicFakeEmbedding(size=8)).as_retriever()
chain = create_retrieval_chain(retriever, create_stuff_documents_chain(llm, prompt))

"""
REQUESTS = {  # by framework and source of the documents
    ("langchain", "documents"): """
from langchain_ragbias import ChatRagBias
llm = ChatRagBias(model_id="tiny", method="pine", max_new_tokens=2)
request = lambda: llm.invoke(joined + "\\n\\n" + question, documents=documents)
""",
    ("langchain", "run"): CHAIN + 'request = lambda: chain.invoke({"input": question})',
    ("langchain", "registry"): CHAIN
    + """
def request():
    retriever.invoke(question)
    (prompt | llm).invoke({"context": joined, "input": question})
""",
    ("llama-index", "documents"): """
from llama_index.llms.ragbias import RagBiasLLM
llm = RagBiasLLM(model_name="tiny", method="pine", max_new_tokens=2)
request = lambda: llm.complete(joined + "\\n\\n" + question, documents=documents)
""",
}


def lines(folder: str) -> int:
    """Count the lines of the Python files below a folder, with their stubs."""
    return _count((ROOT / folder).rglob("*.py*"))


def _count(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths if path.suffix in (".py", ".pyi"))


def lines_by_package() -> dict[str, int]:
    """Count lines of each package of ``ragbias``, largest first, and of its top-level modules as ``"(modules)"``."""
    package = ROOT / "ragbias"
    sizes = {path.parent.name: lines(f"ragbias/{path.parent.name}") for path in package.glob("*/__init__.py")}
    sizes["(modules)"] = _count(package.glob("*.py*"))
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def run(*command: str) -> str:
    """Return what a Python process prints."""
    return subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True).stdout


def modules_of(framework: str, source: str) -> list[str]:
    """Names of the modules whose functions run during the first request of a process."""
    program = TRACED.replace("{request}", REQUESTS[framework, source]).replace("{source}", source)
    modules: list[str] = json.loads(run("-c", program))
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
    for framework, source in REQUESTS:
        count = len(modules_of(framework, source))
        print(f"{count:7} files of a {framework} request, documents by {source} (at most {FILES_OF_A_REQUEST})")
    for label, command in {
        "import ragbias": ("-c", "import ragbias"),
        "import langchain_ragbias": ("-c", "import langchain_ragbias"),
        "ragbias --help": ("-m", "ragbias", "--help"),
        "ragbias methods": ("-m", "ragbias", "methods"),
    }.items():
        print(f"{seconds(*command):7.2f} s {label}")


if __name__ == "__main__":
    main()
