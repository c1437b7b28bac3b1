"""Answer a question with each integration, using only installed distributions. `make dist` runs it.

    python answer_with_wheels.py FOLDER

FOLDER is the environment's folder. All imports must come from it.
"""

import sys
from pathlib import Path

from langchain_core.documents import Document
from llama_index.core import PromptTemplate, get_response_synthesizer
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms import ragbias as llama_index_ragbias

import langchain_ragbias
import ragbias

TEXTS = ["The mascot of Heron Mill is a brass owl.", "The mascot of Ember Abbey is a tin whale."]
QUESTION = "What is the mascot of Heron Mill?"


def main() -> None:
    environment = Path(sys.argv[1]).resolve()
    for package in (ragbias, langchain_ragbias, llama_index_ragbias):
        origin = Path(str(package.__file__)).resolve()
        assert environment in origin.parents, f"{origin} is not of {environment}"

    chat = langchain_ragbias.ChatRagBias(model_id="tiny", method="pine", max_tokens=16)
    prompt = "\n".join([*TEXTS, f"Question: {QUESTION}"])
    message = chat.invoke(prompt, documents=[Document(text) for text in TEXTS])
    _show("LangChain", str(message.content), message.response_metadata["ragbias"])

    llm = llama_index_ragbias.RagBiasLLM(model_name="tiny", method="pine", max_new_tokens=16)
    template = PromptTemplate("{context_str}\nQuestion: {query_str}")
    synthesizer = get_response_synthesizer(llm=llm, text_qa_template=template)
    response = synthesizer.synthesize(QUESTION, nodes=[NodeWithScore(node=TextNode(text=text)) for text in TEXTS])
    _show("LlamaIndex", str(response), llm.last_report)


def _show(framework: str, answer: str, report: object) -> None:
    assert isinstance(report, dict) and report["method_ran"] == "pine" and report["n_found"] == len(TEXTS), report
    assert answer.strip(), "no answer"
    print(f"{framework}: {answer.strip()} ({report['method_ran']}, {report['n_found']} documents)")


if __name__ == "__main__":
    main()
