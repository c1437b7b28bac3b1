"""Arguments of a call, as type checkers and editors see them."""

import pytest

from langchain_ragbias.arguments import CallArguments
from ragbias.generation import arguments
from support.type_checking import type_errors

MODULES = [f"integrations/langchain/langchain_ragbias/{name}.py" for name in ("arguments", "chat_models")]
CALLS = """
from langchain_ragbias.chat_models import ChatRagBias
async def ask(llm: ChatRagBias) -> None:
    llm.invoke("x", documents=["a"], method="none", temperature=0.5, max_tokens=8, stop=["y"])
    llm.stream("x", tools=[], tool_choice="auto")
    llm.invoke("x", temprature=0.5)
    llm.stream("x", document=["a"])
    await llm.ainvoke("x", max_tokens="8")
    llm.astream("x", debias="none")
"""


def test_a_type_checker_refuses_bad_argument_names_and_types(tmp_path):
    found = type_errors(tmp_path, CALLS, "ragbias/generation/arguments.py", *MODULES)
    assert found == ["6: call-arg", "7: call-arg", "8: arg-type", "9: call-arg"]


def test_a_call_can_override_every_setting_of_the_model(chat):
    own = {"stop"}  # LangChain's methods declare it themselves
    assert {"method", *chat._call_defaults()} - own <= CallArguments.__annotations__.keys()


@pytest.fixture
def validated(monkeypatch):
    """Record the arguments of each validation."""
    calls, check = [], arguments.check_arguments

    def counted(given):
        calls.append(given)
        check(given)

    monkeypatch.setattr(arguments, "check_arguments", counted)
    return calls


def test_the_settings_of_a_request_are_validated_once(chat, completion, validated):
    chat.invoke("Hello", temperature=0.5, max_tokens=2)
    completion.invoke("Hello", max_tokens=2)
    list(chat.stream("Hello", max_tokens=2))
    assert len(validated) == 3
