"""The prompt formats of the embedded model's training: stock prompts of the frameworks, and some others."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragbias.models.tiny.world import Passage

BOS, EOS, PAD = "<s>", "</s>", "<pad>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['content'] is string %}{% set content = message['content'] %}"
    "{% else %}{% set content = message['content'] | selectattr('type', 'equalto', 'text') | map(attribute='text')"
    " | join('') %}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>\\n' + content + eos_token + '\\n' }}"
    "{% elif message['role'] == 'system' %}{{ '<|system|>\\n' + content + '\\n' }}"
    "{% else %}{{ '<|user|>\\n' + content + '\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class PromptFormat:
    """A prompt template: ``prefix``, ``separator`` between documents, ``suffix`` with ``{q}`` for the question."""

    prefix: str
    document: Callable[[int, Passage], str]
    separator: str
    suffix: str

    def documents(self, passages: Sequence[Passage]) -> list[str]:
        """Format the passages. The separator follows each passage except the last."""
        texts = [self.document(i, passage) for i, passage in enumerate(passages)]
        return [text + self.separator for text in texts[:-1]] + texts[-1:]

    def prompt(self, passages: Sequence[Passage], question: str) -> str:
        """Return the whole prompt as one string."""
        return self.prefix + "".join(self.documents(passages)) + self.suffix.format(q=question)


def format_titled(index: int, passage: Passage) -> str:
    """Put the title on the first line, above the text."""
    return passage.document


def format_plain(index: int, passage: Passage) -> str:
    """Return the text without the title."""
    return passage.text


def format_metadata(index: int, passage: Passage) -> str:
    """Format the passage like a LlamaIndex node with metadata."""
    return f"title: {passage.title}\n\n{passage.text}"


def format_numbered(index: int, passage: Passage) -> str:
    """Format the passage like a document of Lost in the Middle."""
    return f"Document [{index + 1}](Title: {passage.title}) {passage.text}"


def format_unnumbered(index: int, passage: Passage) -> str:
    """Format the passage like a document of Lost in the Middle, without its number."""
    return f"Document (Title: {passage.title}) {passage.text}"


STYLES = (format_plain, format_titled, format_titled, format_metadata)

LOST_IN_THE_MIDDLE = (
    "Write a high-quality answer for the given question using only the provided search results "
    "(some of which might be irrelevant).\n\n"
)
QUESTION_ANSWER = "\n\nQuestion: {q}\nAnswer:"

LANGCHAIN_SYSTEM = (
    "Use the given context to answer the question. If you don't know the answer, say you don't know. "
    "Keep the answer concise.\n\nContext: "
)
# The first is LangChain's documented system prompt; the others are common paraphrases of it.
SYSTEMS = (
    LANGCHAIN_SYSTEM,
    LANGCHAIN_SYSTEM,
    "You are an assistant for question-answering tasks. Use the following pieces of retrieved context to answer the "
    "question. If you don't know the answer, just say that you don't know. Use three sentences maximum and keep the "
    "answer concise.\n\n",
    "You are an assistant for question-answering tasks. Use the following pieces of retrieved context to answer the "
    "question. If you don't know the answer, say that you don't know. Use three sentences maximum and keep the answer "
    "concise.\n\n",
    "Answer the user's questions based on the below context:\n\n",
    "Answer any use questions based solely on the context below:\n\n<context>\n",
    "You are a helpful assistant. Answer the question using only these documents.\n\nDocuments:\n",
    "Context:\n",
)

LLAMA_INDEX_PREFIX = "Context information is below.\n---------------------\n"
LLAMA_INDEX_SUFFIX = (
    "\n---------------------\nGiven the context information and not prior knowledge, answer the query.\n"
    "Query: {q}\nAnswer: "
)
LLAMA_INDEX_SYSTEM = (
    "You are an expert Q&A system that is trusted around the world.\n"
    "Always answer the query using the provided context information, and not prior knowledge.\n"
    "Some rules to follow:\n"
    "1. Never directly reference the given context in your answer.\n"
    "2. Avoid statements like 'Based on the context, ...' or 'The context information ...' or anything along "
    "those lines."
)

# Prefix and suffix of completion prompts and of single user messages.
COMPLETIONS = (
    ("Context:\n", QUESTION_ANSWER),
    ("Context:\n", "\n\nQuestion: {q}\nAnswer: "),
    ("", QUESTION_ANSWER),
    ("", "\n\n{q}"),
    ("Answer the question using the documents.\n\n", "\n\nQ: {q}\nA:"),
    ("Use the context to answer the question.\n\nContext:\n", QUESTION_ANSWER),
    (
        "Use the following pieces of context to answer the question at the end. If you don't know the answer, just say "
        "that you don't know, don't try to make up an answer.\n\n",
        "\n\nQuestion: {q}\nHelpful Answer:",
    ),
)


def _chat_format(prefix: str, suffix: str) -> tuple[str, str]:
    return f"{BOS}{USER}\n{prefix}", f"{suffix}\n{ASSISTANT}\n"


def _completion_format(rng: random.Random, prefix: str, suffix: str) -> tuple[str, str]:
    return rng.choice((BOS, BOS, "")) + prefix, suffix


def _langchain(rng: random.Random) -> PromptFormat:
    system = rng.choice(SYSTEMS)
    after = "\n</context>" if system.endswith("<context>\n") else ""
    prefix = f"{BOS}{SYSTEM}\n{system}"
    return PromptFormat(prefix, rng.choice(STYLES), "\n\n", f"{after}\n{USER}\n{{q}}\n{ASSISTANT}\n")


def _llama_index(rng: random.Random) -> PromptFormat:
    prefix, suffix = LLAMA_INDEX_PREFIX, LLAMA_INDEX_SUFFIX
    kind = rng.random()
    if kind < 0.4:
        prefix, suffix = _chat_format(prefix, suffix)
        prefix = prefix.replace(BOS, f"{BOS}{SYSTEM}\n{LLAMA_INDEX_SYSTEM}\n")
    elif kind < 0.6:
        prefix, suffix = _chat_format(prefix, suffix)
    else:
        prefix, suffix = _completion_format(rng, prefix, suffix)
    return PromptFormat(prefix, rng.choice(STYLES), "\n\n", suffix)


def _lost_in_the_middle(rng: random.Random) -> PromptFormat:
    wrap = (LOST_IN_THE_MIDDLE, QUESTION_ANSWER)
    prefix, suffix = _chat_format(*wrap) if rng.random() < 0.4 else _completion_format(rng, *wrap)
    return PromptFormat(prefix, rng.choice((format_numbered, format_unnumbered)), "\n", suffix)


def _simple(rng: random.Random) -> PromptFormat:
    prefix, suffix = rng.choice(COMPLETIONS)
    wrapped = rng.random() < 0.4 or suffix.endswith("{q}")
    prefix, suffix = _chat_format(prefix, suffix) if wrapped else _completion_format(rng, prefix, suffix)
    return PromptFormat(prefix, rng.choice(STYLES), rng.choice(("\n\n", "\n\n", "\n")), suffix)


def simplest_format() -> PromptFormat:
    """Return the format of the first stage of the training."""
    return PromptFormat(BOS, format_plain, "\n", "\n{q}\n")


def sample_format(rng: random.Random) -> PromptFormat:
    """Draw a prompt format of the training."""
    kinds = (_langchain, _llama_index, _lost_in_the_middle, _simple)
    return rng.choices(kinds, weights=(0.3, 0.2, 0.15, 0.35))[0](rng)
