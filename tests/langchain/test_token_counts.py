"""The model's own tokenizer counts tokens, so histories are trimmed correctly."""

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, trim_messages

from langchain_ragbias import ChatRagBias, RagBiasPipeline
from support.scripted import with_template

HISTORY = [
    SystemMessage("Be brief."),
    *(kind(f"{kind.__name__} {turn}: " + "word " * 20) for turn in range(6) for kind in (HumanMessage, AIMessage)),
    HumanMessage("And now?"),
]


def test_counts_are_those_of_the_tokenizer(lm):
    for llm in (ChatRagBias(lm=lm), RagBiasPipeline(lm=lm)):
        assert llm.get_token_ids("An owl.") == lm.tokenizer("An owl.", add_special_tokens=False)["input_ids"]
        assert llm.get_num_tokens("An owl.") == len(llm.get_token_ids("An owl.")) > 0
    assert RagBiasPipeline(lm=lm).get_num_tokens_from_messages([HumanMessage("hi")]) > 0
    assert RagBiasPipeline(lm=lm, custom_get_token_ids=lambda text: [1]).get_num_tokens("An owl.") == 1


def test_a_conversation_has_the_tokens_that_its_request_has(lm):
    chat = ChatRagBias(lm=lm, max_tokens=1)
    usage = chat.invoke(HISTORY).usage_metadata
    assert usage is not None and chat.get_num_tokens_from_messages(HISTORY) == usage["input_tokens"]
    assert chat.get_num_tokens_from_messages([]) == 0


def test_messages_are_trimmed_to_the_models_tokens(lm):
    chat = ChatRagBias(lm=lm)
    whole = chat.get_num_tokens_from_messages(HISTORY)
    trimmed = trim_messages(HISTORY, token_counter=chat, max_tokens=whole // 2, strategy="last", include_system=True)
    assert 2 < len(trimmed) < len(HISTORY) and trimmed[0] == HISTORY[0] and trimmed[-1] == HISTORY[-1]
    assert chat.get_num_tokens_from_messages(trimmed) <= whole // 2


def test_messages_the_template_refuses_are_counted_one_by_one(lm):
    for template in ("{{ raise_exception('roles must alternate') }}", None):
        chat = ChatRagBias(lm=with_template(lm, template, name="other"))
        assert chat.get_num_tokens_from_messages(HISTORY[2:4]) > 20
