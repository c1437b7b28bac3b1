"""Auditing pipelines: LangChain chains, LlamaIndex engines, functions."""

import sys
import threading

import pytest
from langchain_core.runnables import RunnableLambda

from langchain_ragbias import ChatRagBias
from ragbias.errors import RunError
from ragbias.generation import GenerationSettings
from ragbias.generation.recording import RecordedRequest, recording
from ragbias.methods import NoMethod
from ragbias.prompt import tokenise
from ragbias_eval.audit.cases import AuditCase
from ragbias_eval.audit.pipeline import from_pipeline, load_pipeline
from support.audited_pipelines import QUESTIONS, TEXTS, Unframed, chain, chat


def test_the_last_request_with_documents_has_its_settings(tiny):
    class Condensing(Unframed):
        def __call__(self, question):
            super().__call__(question)
            tiny.generate("Rephrase: " + question, max_new_tokens=2)

    cases = from_pipeline(Condensing(tiny), QUESTIONS)
    for case, question in zip(cases, QUESTIONS, strict=True):
        assert [text.strip() for text in case.prompt.documents] == TEXTS[question.question]
        assert case.recorded.settings == GenerationSettings(max_new_tokens=5)
        assert case.recorded.request.method_requested.name == "pine"


def test_other_orders_only_move_the_documents_of_the_prompt(tiny):
    case, *_ = from_pipeline(Unframed(tiny), QUESTIONS)
    order = [3, 1, 5, 0, 4, 2]
    again = case.request(order)
    recorded_tokens = case.recorded.request.tokens
    assert again.tokens.documents == [recorded_tokens.documents[index] for index in order]
    assert (again.tokens.prefix, again.tokens.suffix) == (recorded_tokens.prefix, recorded_tokens.suffix)
    assert again.method.name == "pine"
    assert case.request(order, NoMethod()).method.name == "none"


def test_reordering_methods_start_from_the_retrieved_order(tiny):
    texts = TEXTS[QUESTIONS[0].question]
    request = tiny.prepare("\n\n".join(texts) + "\n\nWhy?", documents=texts, method="long-context-reorder")
    assert request.tokens.documents != tokenise(request.prompt.parts, tiny.tokenizer).documents
    case = AuditCase(QUESTIONS[0], RecordedRequest(tiny, request, GenerationSettings()))
    assert case.request().tokens == request.tokens
    assert case.request(method=NoMethod()).tokens == tokenise(request.prompt.parts, tiny.tokenizer)


@pytest.mark.parametrize("build", [chain, lambda llm: chain(llm).with_config(tags=["x"])])
def test_langchain_chains_are_invoked_with_the_key_they_take(tiny, build):
    cases = from_pipeline(build(chat(tiny)), QUESTIONS)
    assert [[text.strip() for text in each.prompt.documents] for each in cases] == list(TEXTS.values())


def test_runnable_that_takes_the_question_itself(tiny):
    first = RunnableLambda(lambda question: {"input": question})
    cases = from_pipeline(first | chain(chat(tiny)), QUESTIONS)
    assert len(cases) == 2


def test_a_streaming_pipeline_in_another_thread_is_recorded(tiny):
    def pipeline(question):
        text = "\n\n".join(TEXTS[question]) + "\n\n" + question
        thread = threading.Thread(
            target=lambda: list(tiny.stream(text, documents=TEXTS[question], method="none", max_new_tokens=3))
        )
        thread.start()
        thread.join()

    cases = from_pipeline(pipeline, QUESTIONS)
    assert [len(each.prompt.documents) for each in cases] == [6, 6]
    assert cases[0].recorded.settings.max_new_tokens == 3


def test_llama_index_query_engine(tiny):
    from llama_index.core import PromptTemplate, get_response_synthesizer
    from llama_index.core.query_engine import RetrieverQueryEngine
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.llms.ragbias import RagBiasLLM

    class Retriever(BaseRetriever):
        def _retrieve(self, query_bundle):
            return [NodeWithScore(node=TextNode(text=text), score=1.0) for text in TEXTS[query_bundle.query_str]]

    llm = RagBiasLLM(lm=tiny, method="none", max_new_tokens=8)
    template = PromptTemplate("Context:\n{context_str}\n\nQuestion: {query_str}\nAnswer:")
    synthesizer = get_response_synthesizer(llm=llm, response_mode="compact", text_qa_template=template)
    cases = from_pipeline(RetrieverQueryEngine(Retriever(), synthesizer), QUESTIONS)
    assert [[text.strip() for text in each.prompt.documents] for each in cases] == list(TEXTS.values())


def test_recording_ends_with_its_context(tiny):
    with recording() as outer:
        with recording() as inner:
            tiny.generate("a", max_new_tokens=1)
        tiny.generate("b", max_new_tokens=1)
    tiny.generate("c", max_new_tokens=1)
    assert (len(outer), len(inner)) == (2, 1)


def test_a_pipeline_without_our_model_names_what_to_swap():
    with pytest.raises(RunError, match="use a ragbias LLM in it: langchain_ragbias.ChatRagBias"):
        from_pipeline(lambda question: "42", QUESTIONS)


def test_a_pipeline_without_documents_is_reported(tiny):
    with pytest.raises(RunError, match="no prompt of the pipeline contains two or more documents"):
        from_pipeline(lambda question: tiny.generate(question, max_new_tokens=1), QUESTIONS)


def test_rewritten_documents_of_a_plain_pipeline_are_explained(tiny):
    llm = ChatRagBias(lm=tiny, method="none", max_tokens=1)
    given = ["The gate is red.", "The wall is blue."]
    with pytest.raises(RunError, match="none of the 2 documents given explicitly appears verbatim"):
        from_pipeline(lambda question: llm.invoke(question, documents=given), QUESTIONS)


def test_failing_pipeline_shows_its_error():
    def pipeline(question):
        raise KeyError("index.faiss")

    with pytest.raises(RunError, match="the pipeline fails on .*KeyError: 'index.faiss'"):
        from_pipeline(pipeline, QUESTIONS)


def test_a_pipeline_that_exits_fails():
    with pytest.raises(RunError, match="the pipeline fails on .*SystemExit: 0"):
        from_pipeline(lambda question: sys.exit(0), QUESTIONS)


@pytest.mark.parametrize(
    ("source", "location", "words"),
    [
        ("import sys; sys.exit(0)", "{}:chain", "cannot be loaded: SystemExit: 0"),
        ("class A:\n    @property\n    def x(self): 1 / 0\na = A()", "{}:a.x", "cannot be loaded: ZeroDivisionError"),
        ("def __getattr__(name): raise SystemExit(0)", "{}:chain", "cannot be loaded: SystemExit: 0"),
        ("", "no_such_module_here:chain", "cannot be loaded: ModuleNotFoundError"),
        ("1 / 0", "{}:chain", "cannot be loaded: ZeroDivisionError"),
        ("chain = 3", "{}:other", "cannot be loaded: AttributeError: .* has no attribute 'other'"),
        ("chain = 3", "{}:chain", "which cannot be called"),
        ("class chain:\n    def invoke(self, x): ...", "{}:chain", "which cannot be called"),
        ("chain = 3", "{}", "expected module:object"),
    ],
)
def test_what_is_no_pipeline_is_refused(tmp_path, monkeypatch, source, location, words):
    name = f"pipeline_{abs(hash((source, location)))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(RunError, match=words):
        load_pipeline(location.format(name))


def test_pipeline_is_found_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "my_rag_app.py").write_text("class A:\n    @staticmethod\n    def ask(q): return q * 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_pipeline("my_rag_app:A.ask")("x") == "xx"


FACTORIES = """
import functools
from langchain_core.runnables import RunnableLambda
chain = RunnableLambda(lambda question: question)

def plain():
    return chain

def hinted() -> RunnableLambda:
    return chain

def with_defaults(k: int = 5, *more, **settings):
    return chain

async def later():
    return chain

def of_functions():
    return lambda question: question

class App:
    @classmethod
    def build(cls):
        return chain
    def ask(self, question=None):
        return question.upper()
app = App()
fixed = functools.partial(plain)

def of_a_question(question="Why?"):
    return question.lower()

def of_nothing():
    return None

def fails():
    raise KeyError("OPENAI_API_KEY")

def of_a_class():
    return App
"""


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "factories_here.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield lambda name: load_pipeline(f"factories_here:{name}")
    sys.modules.pop("factories_here", None)


@pytest.mark.parametrize("name", ["plain", "hinted", "later", "App.build", "chain"])
def test_a_function_without_arguments_makes_the_pipeline(factories, name):
    assert type(factories(name)).__name__ == "RunnableLambda"


def test_a_function_that_makes_a_function_or_takes_a_question(factories):
    assert factories("of_functions")("x") == "x"
    assert factories("of_a_question")("X") == "x"
    assert factories("app.ask")("x") == "X"


def test_functions_with_optional_arguments_get_the_question(factories):
    assert factories("with_defaults").__name__ == "with_defaults"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("of_nothing", "is a function without arguments and returns None, which cannot be called"),
        ("of_a_class", "returns <class .*App'>, which cannot be called; expected a LangChain runnable"),
        ("fails", "fails' cannot be loaded: KeyError: 'OPENAI_API_KEY'"),
        ("App", "is <class .*App'>, which cannot be called"),
    ],
)
def test_a_factory_that_returns_no_pipeline_is_reported(factories, name, words):
    with pytest.raises(RunError, match=words):
        factories(name)
