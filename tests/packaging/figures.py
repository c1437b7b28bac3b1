"""What the package looks like in numbers: ``python tests/packaging/figures.py``.

Modules at the top of ``ragbias``, lines of code, circles among modules, the files that one request of a LangChain model
with two documents passes through, and the seconds that imports and ``--help`` take (best of five fresh processes).
"""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("ragbias", "integrations")
REQUEST = """
import sys
from pathlib import Path
from langchain_ragbias import ChatRagBias
import ragbias

documents = ["Copper Hall\\nThe passphrase is dagger.\\n\\n", "Pulsar Observatory\\nThe walls are emerald.\\n\\n"]
llm = ChatRagBias(model_id="tiny", method="pine", max_new_tokens=2)
llm.invoke("warm up")
seen = set()

def trace(frame, event, argument):
    name = frame.f_globals.get("__name__", "")
    if name.partition(".")[0] in ("ragbias", "langchain_ragbias"):
        seen.add(frame.f_code.co_filename)

sys.setprofile(trace)
llm.invoke("Context:\\n\\n" + "".join(documents) + "What is the passphrase?", documents=documents)
sys.setprofile(None)
print(len(seen))
for each in sorted(seen):
    print("  ", Path(each).relative_to(Path(each).parents[-1]), file=sys.stderr)
"""


def modules() -> dict[str, ast.Module]:
    """The modules of ``ragbias`` by name, parsed."""
    found = {}
    for path in sorted((ROOT / "ragbias").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text())
    return found


def imports(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """The modules of ``known`` that a module imports anywhere, for type checkers only included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield from (name for name in (full if full in known else node.module,) if name in known)


def circles() -> list[list[str]]:
    """Modules that import each other, directly or by way of others (Tarjan's strongly connected components)."""
    trees = modules()
    graph = {name: sorted(set(imports(tree, set(trees))) - {name}) for name, tree in trees.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(component) > 1:
                found.append(sorted(component))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def lines(folder: str) -> int:
    """Lines of the Python files of a folder."""
    return sum(len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py"))


def seconds(*command: str) -> float:
    """The best of five runs in a fresh process."""
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True, cwd=ROOT)
        taken.append(time.perf_counter() - begin)
    return min(taken)


def main() -> None:
    print("modules at the top of ragbias:", len(list((ROOT / "ragbias").glob("*.py"))))
    print("lines of code:", ", ".join(f"{folder} {lines(folder)}" for folder in (*SOURCES, "tests", "examples")))
    print("circles among modules:", len(circles()))
    request = subprocess.run([sys.executable, "-c", REQUEST], check=True, capture_output=True, text=True, cwd=ROOT)
    print("files that a request passes through:", request.stdout.strip())
    for label, command in {
        "import ragbias": ("-c", "import ragbias"),
        "import langchain_ragbias": ("-c", "import langchain_ragbias"),
        "ragbias --help": ("-m", "ragbias", "--help"),
        "ragbias methods": ("-m", "ragbias", "methods"),
    }.items():
        print(f"{label}: {seconds(*command):.2f} s")


if __name__ == "__main__":
    main()
