"""LangChain's own suite for chat models, on the embedded model; offline. It has no suite for completion models.

Tests that the suite itself skips, with reasons:

- ``init_from_env_params``, ``test_serdes``: a local model has no key in the environment and is not serialised
- model override: a model object holds one loaded model; a call cannot name another
- images, PDF, audio, Anthropic's content: the models read text only, and refuse the rest by name
- ``test_stream_time``: it measures a server's recorded answers (VCR)
"""

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from langchain_ragbias import ChatRagBias
from ragbias import DebiasedLM

NO_CALLS = "tiny was trained to answer questions over passages and cannot write the JSON of a tool call"
NO_JSON = "tiny was trained to answer questions over passages and cannot write JSON"
SKIPPED = {
    "test_tool_calling": NO_CALLS,
    "test_tool_calling_async": NO_CALLS,
    "test_tool_calling_with_no_arguments": NO_CALLS,
    "test_bind_runnables_as_tools": NO_CALLS,
    "test_tool_choice": NO_CALLS,
    "test_unicode_tool_call_integration": NO_CALLS,
    "test_agent_loop": NO_CALLS,
    "test_structured_output": NO_JSON,
    "test_structured_output_async": NO_JSON,
    "test_structured_output_pydantic_2_v1": NO_JSON,
    "test_structured_output_optional_param": NO_JSON,
    "test_json_mode": NO_JSON,
}


class OnTiny:
    """The embedded model with tools in its chat template."""

    lm: DebiasedLM

    @pytest.fixture(autouse=True)
    def _model(self, tiny_with_tools: DebiasedLM, request: pytest.FixtureRequest) -> None:
        type(self).lm = tiny_with_tools
        name = getattr(request.node, "originalname", request.node.name)
        if name in SKIPPED:
            pytest.skip(SKIPPED[name])

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatRagBias

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"lm": self.lm}

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestUnit(OnTiny, ChatModelUnitTests):
    pass


class TestIntegration(OnTiny, ChatModelIntegrationTests):
    pass
