"""Tool choices, and parsing of answers with tool calls, for both frameworks."""

import pytest

from ragbias.errors import ArgumentError
from ragbias.frameworks.tool_use import (
    AnswerFormat,
    GrowingAnswer,
    ToolChoice,
    answer_format,
    parse_tool_choice,
    supports_tools,
    template_problem,
)
from support.scripted import with_template

ADD, GREET = ({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("add", "greet"))
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        (False, ToolChoice()),
        ("none", ToolChoice(offered=False)),
        ("any", ToolChoice(required=True)),
        ("required", ToolChoice(required=True)),
        (True, ToolChoice(required=True)),
        ("add", ToolChoice(required=True, name="add")),
        ({"type": "function", "function": {"name": "add"}}, ToolChoice(required=True, name="add")),
        ({"name": "add"}, ToolChoice(required=True, name="add")),
    ],
)
def test_every_way_to_choose_is_read(choice, expected):
    assert parse_tool_choice(choice, [ADD, GREET]) == expected


@pytest.mark.parametrize(
    ("choice", "tools"), [("subtract", [ADD]), ({}, [ADD]), ({"function": 3}, [ADD]), (3, [ADD]), ("any", [])]
)
def test_a_choice_without_its_tool_is_refused(choice, tools):
    with pytest.raises(ArgumentError, match="tool_choice="):
        parse_tool_choice(choice, tools)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "there is none"),
        ("{{ messages[0].content }}", "it ignores them"),
        ("{% if tools %}{{ raise_exception('not today') }}{% endif %}", "not today"),
        ("{{ tools | nosuchfilter }}", "it fails with"),
        ("{% for tool in tools or [] %}{{ tool.function.name }}<tool_call>{% endfor %}", ""),
    ],
)
def test_a_template_without_tools_is_reported_with_the_reason(lm, template, reason):
    model = with_template(lm, template)
    assert reason in template_problem(model, [ADD, GREET])
    assert supports_tools(model) == (not reason) == (not template_problem(model, [ADD, GREET]))


def test_a_call_of_the_only_tool_is_begun_with_its_name(lm):
    model = with_template(lm, "{{ tools }}<tool_call>")
    named = answer_format(model, [ADD], "required").beginning
    assert named == answer_format(model, [ADD, GREET], "add").beginning
    assert named.endswith('{"name": "add", "arguments":')
    assert answer_format(model, [ADD, GREET], "required").beginning.endswith('{"name": "')


@pytest.mark.parametrize("form", [AnswerFormat(), AnswerFormat([ADD]), AnswerFormat([ADD], "I ")])
@pytest.mark.parametrize("text", ["look. ", f"look.\n{CALL}", f"{CALL}", "a < b"])
def test_the_parts_of_a_growing_answer_add_up_to_its_content(form, text):
    growing = GrowingAnswer(form)
    shown = "".join(growing.add(letter) for letter in text)
    content, calls = form.read(text)
    assert shown + growing.rest(content) == content == growing.shown
    assert len(calls) == ("tool_call" in text and bool(form.tools))
