"""Prompts of conversations with retrieval, with the true spans of the current turn's documents."""

import random
from dataclasses import dataclass, field

BEGIN, END = "\ue000", "\ue001"  # marks around the current turn's documents, removed from the final prompt
Turns = list[tuple[str, str]]  # role and text

FAMILIES = {  # templates for a message of each role, and for the beginning of the answer
    "chatml": ("<|im_start|>{role}\n{text}<|im_end|>\n", "<|im_start|>assistant\n", {}),
    "llama 3": (
        "<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        {"tool": "ipython"},
    ),
    "zephyr": ("<|{role}|>\n{text}</s>\n", "<|assistant|>\n", {}),
    "gemma": ("<start_of_turn>{role}\n{text}<end_of_turn>\n", "<start_of_turn>model\n", {"assistant": "model"}),
    "granite": (
        "<|start_of_role|>{role}<|end_of_role|>{text}<|end_of_text|>\n",
        "<|start_of_role|>assistant<|end_of_role|>",
        {},
    ),
    "deepseek": (
        "<\uff5c{role}\uff5c>{text}",
        "<\uff5cAssistant\uff5c>",
        {"user": "User", "assistant": "Assistant", "system": "System"},
    ),
    "command": (
        "<|START_OF_TURN_TOKEN|><|{role}_TOKEN|>{text}<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        {"user": "USER", "assistant": "CHATBOT", "system": "SYSTEM", "tool": "SYSTEM"},
    ),
    "human and ai": (
        "{role}: {text}\n",
        "AI:",
        {"user": "Human", "assistant": "AI", "system": "System", "tool": "Tool"},
    ),
    "user and assistant": (
        "{role}: {text}\n\n",
        "Assistant:",
        {"user": "User", "assistant": "Assistant", "system": "System", "tool": "Tool"},
    ),
    "alpaca": (
        "### {role}:\n{text}\n\n",
        "### Assistant:\n",
        {"user": "Human", "assistant": "Assistant", "system": "System"},
    ),
}
MISTRAL, FLAT = "mistral", "flat"
QUESTIONS = ["Which is green?", "Who owns the mill?", "Tell me about the tower.", "And then?", "Why is that so?"]
TEMPLATES = [
    "Context:\n{context}\n\nQuestion: {question}",
    "Use the following pieces of context to answer the question at the end. If you don't know the answer, just "
    "say that you don't know.\n\n{context}\n\nQuestion: {question}\nHelpful Answer:",
    "Context information is below.\n---------------------\n{context}\n---------------------\nGiven the context "
    "information and not prior knowledge, answer the query.\nQuery: {question}\nAnswer: ",
    "Answer the question based only on the following context:\n{context}\n\nQuestion: {question}\n",
    "{question}\n\n<context>\n{context}\n</context>",
    "Question: {question}\n\nDocuments:\n{context}\n\nAnswer:",
    "{context}\n\nQuestion: {question}",
    "Search results:\n\n{context}\n\nUser question: {question}",
]
SYSTEMS = [
    "Use the context to answer.\n\nContext: {context}",
    "You are helpful. Answer from these documents:\n\n{context}",
]
QUOTES = {
    "one": "Is it true that {0}",
    "one in marks": 'You said "{0}". Why?',
    "two": 'Is it "{0}" or "{1}"?',
    "all": "Which of these is right: {all}?",
    "all in lines": "Which of these is right?\n{lines}",
    "all in marks": 'Compare "{marks}", please.',
}
NOUNS, VERBS = (
    ["falcon", "heron", "otter", "mill", "tower", "gate", "bridge", "wall"],
    ["sees", "owns", "likes", "left"],
)


@dataclass
class Conversation:
    """A prompt with its true spans and its retrievals.

    Attributes:
        text: the prompt.
        spans: spans of the current turn's documents.
        retrievals: texts of each retrieval, latest first.
    """

    text: str
    spans: tuple[tuple[int, int], ...]
    retrievals: list[list[str]] = field(default_factory=list)


def document(rng: random.Random) -> str:
    """Draw a document of one to three sentences."""
    sentences = [
        f"The {rng.choice(NOUNS)} {rng.choice(VERBS)} the {rng.choice(NOUNS)} in {rng.randrange(1000, 2000)}."
        for _ in range(rng.choice([1, 1, 2, 3]))
    ]
    return rng.choice([" ", "\n"]).join(sentences)


def written(family: str, turns: Turns) -> str:
    """Render a conversation as a prompt for the assistant's answer."""
    if family == FLAT:
        return "\n\n".join(f"{text}\n" if role == "assistant" else text for role, text in turns)
    if family == MISTRAL:
        return "<s>" + _mistral(turns)
    form, opening, names = FAMILIES[family]
    return "".join(form.format(role=names.get(role, role), text=text) for role, text in turns) + opening


def _mistral(turns: Turns) -> str:
    text, pending = "", ""
    for role, content in turns:
        if role == "assistant":
            text += f" {content}</s>"
        elif role == "system":
            pending = content + "\n\n"
        elif role == "tool":
            text += f"[TOOL_RESULTS] {content}[/TOOL_RESULTS]"
        else:
            text += f"[INST] {pending}{content} [/INST]"
            pending = ""
    return text


def made(text: str, retrievals: list[list[str]]) -> Conversation:
    """Make a conversation from a text with marks around the current turn's documents."""
    bare, *parts = text.split(BEGIN)
    spans = []
    for part in parts:
        inside, _, after = part.partition(END)
        spans.append((len(bare), len(bare) + len(inside)))
        bare += inside + after
    return Conversation(bare, tuple(spans), retrievals)


def context(documents: list[str], separator: str, this_turn: bool) -> str:
    """Join documents, and mark them if they belong to the current turn."""
    return separator.join(f"{BEGIN}{each}{END}" if this_turn else each for each in documents)


def quoting(rng: random.Random, kind: str, documents: list[str]) -> str:
    """Draw a question that quotes documents."""
    return QUOTES[kind].format(
        *rng.sample(documents, 2), all="; ".join(documents), lines="\n".join(documents), marks='", "'.join(documents)
    )


def conversation(seed: int, family: str, where: str, quote: str = "", reverse: bool = False) -> Conversation:
    """Draw a conversation of one to four turns, each with a retrieval. Documents may occur in several turns.

    Args:
        where: role of the messages with documents: ``user`` or ``tool`` in every turn, ``system`` only in the last.
        quote: key of ``QUOTES``, which selects how the last question quotes its documents.
        reverse: whether to reverse the last turn's documents.
    """
    rng = random.Random(seed)
    pool = list(dict.fromkeys(document(rng) for _ in range(8)))
    template = rng.choice(SYSTEMS if where == "system" else TEMPLATES)
    separator = rng.choice(["\n\n", "\n", "\n---\n", "\n* "])
    n_turns = rng.randrange(1, 5) if family != FLAT or template.rstrip().endswith("Answer:") else 1
    turns: Turns = []
    retrievals: list[list[str]] = []
    for turn in range(n_turns):
        last = turn == n_turns - 1
        found = rng.sample(pool, rng.randrange(2, 5))
        retrievals.insert(0, rng.sample(found, len(found)))
        question = quoting(rng, quote, found) if last and quote else rng.choice(QUESTIONS)
        answer = rng.choice(["It is so.", rng.choice(found)])
        context_text = context(found[::-1] if last and reverse else found, separator, last)
        if where == "user":
            turns.append(("user", template.format(context=context_text, question=question)))
        elif where == "tool":
            turns += [("user", question), ("assistant", "Let me look."), ("tool", context_text)]
        else:
            turns = [("system", template.format(context=context_text)), *turns] if last else turns
            turns.append(("user", question))
        turns += [] if last else [("assistant", answer)]
    if where != "system" and family != FLAT and rng.random() < 0.5:
        turns.insert(0, ("system", "You are a helpful assistant."))
    return made(written(family, turns), retrievals)
