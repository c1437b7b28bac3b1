"""What every framework integration needs.

What was retrieved: ``retrievals``, and ``searches`` that no framework announces. What a request leaves behind:
``last_report`` and ``missing_documents``. Both belong to a context, see ``context_scoped``. Arguments and fields of the
models: ``constructor_arguments``, ``settled_fields``. Calls of tools: ``tool_use``, ``tool_formats``. What OpenAI's API
has: ``json_answers``, ``openai_logprobs``. Event loops: ``asyncio_bridge``.
"""
