"""The model's own tokenizer counts tokens if it is passed to LlamaIndex."""

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer


def test_a_memory_is_trimmed_to_the_models_tokens(llm):
    text = "user: " + "word " * 20
    assert llm.token_ids(text) == llm.lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    history = [ChatMessage(role=role, content="word " * 20) for role in ("user", "assistant") * 5]
    one = len(llm.token_ids("word " * 20))
    memory = ChatMemoryBuffer.from_defaults(history, llm=llm, token_limit=5 * one, tokenizer_fn=llm.token_ids)
    assert 2 <= len(memory.get()) <= 5
