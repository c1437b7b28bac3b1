"""Parsing of tool calls in every format, complete and streamed."""

import itertools
import json

import pytest

from ragbias.frameworks.tool_formats import MARKERS, ToolCall, forced_beginning, parse_tool_calls, visible_length

HERMES = '<tool_call>\n{"name": "search", "arguments": {"q": "red \\"gate\\""}}\n</tool_call>'
LLAMA = '{"name": "search", "parameters": {"q": "gate"}}'
MISTRAL = '[TOOL_CALLS] [{"name": "search", "arguments": {"q": "gate"}}, {"name": "now", "arguments": {}}]'
CASES = [
    # text, content, (name, arguments) of the calls
    ("Nothing to call.", "Nothing to call.", []),
    ("", "", []),
    (HERMES, "", [("search", {"q": 'red "gate"'})]),
    ("Let me look.\n" + HERMES, "Let me look.", [("search", {"q": 'red "gate"'})]),
    (f"{HERMES}\n{HERMES}", "", [("search", {"q": 'red "gate"'})] * 2),
    (f"A\n{HERMES}B{HERMES}C", "A\nBC", [("search", {"q": 'red "gate"'})] * 2),
    (HERMES.removesuffix("\n</tool_call>"), "", [("search", {"q": 'red "gate"'})]),
    (LLAMA, "", [("search", {"q": "gate"})]),
    (f"<|python_tag|>{LLAMA}", "", [("search", {"q": "gate"})]),
    (f"Wait.<|python_tag|> {LLAMA}", "Wait.", [("search", {"q": "gate"})]),
    (f"{LLAMA}; {LLAMA}", "", [("search", {"q": "gate"})] * 2),
    (f"{LLAMA}\n{LLAMA}", "", [("search", {"q": "gate"})] * 2),
    (MISTRAL, "", [("search", {"q": "gate"}), ("now", {})]),
    (f"Hm. {MISTRAL}", "Hm.", [("search", {"q": "gate"}), ("now", {})]),
    ('<tool_call>{"name": "now"}</tool_call>', "", [("now", {})]),
    ('<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [("now", {})]),
    ('<tool_call>{"name": "s", "arguments": "{\\"q\\": 1}"}</tool_call>', "", [("s", {"q": 1})]),
    ('{"type": "function", "function": {"name": "s", "parameters": {"q": 1}}}', "", [("s", {"q": 1})]),
    ('<tool_call>{"name": "s", "arguments": {"q": "two\nlines"}}</tool_call>', "", [("s", {"q": "two\nlines"})]),
    ('{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),  # JSON that is no call
    ('{"name": "Ada", "ag', '{"name": "Ada", "ag', []),
    ('[{"name": "s"}]', '[{"name": "s"}]', []),
]


@pytest.mark.parametrize(("text", "content", "calls"), CASES)
def test_calls_and_content_are_distinguished(text, content, calls):
    got_content, got_calls = parse_tool_calls(text)
    assert got_content == content
    assert [(call.name, call.arguments) for call in got_calls] == calls
    assert [call.error for call in got_calls] == [""] * len(calls)


@pytest.mark.parametrize(
    ("text", "name", "error"),
    [
        ('<tool_call>{"name": "search", "arguments": {"q": }}</tool_call>', "search", "not valid JSON"),
        ('<tool_call>{"name": "search", "arguments": {"q": "ga', "search", "not valid JSON"),
        ("<tool_call>search(gate)</tool_call>", "", "not valid JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', "", '"name"'),
        ('<tool_call>{"name": "search", "arguments": [1]}</tool_call>', "search", "list"),
        ('<tool_call>{"name": "search", "arguments": "gate"}</tool_call>', "search", "arguments are not valid JSON"),
        ('{"name": "search", "parameters": {"q": "ga', "search", "not valid JSON"),
        ('<|python_tag|>brave.call(query="gate")', "", "not valid JSON"),
        ('[TOOL_CALLS] [{"name": "search", "arguments": {', "search", "not valid JSON"),
        ("[TOOL_CALLS] [3]", "", '"name"'),
        ("<tool_call></tool_call>", "", "not valid JSON"),
    ],
)
def test_broken_calls_are_returned_with_their_error(text, name, error):
    content, calls = parse_tool_calls(text)
    assert content == ""
    assert len(calls) == 1
    assert (calls[0].name, calls[0].arguments) == (name, None)
    assert error in calls[0].error
    assert calls[0].raw in text or json.loads(calls[0].raw)


def test_a_broken_call_does_not_hide_the_others():
    _, calls = parse_tool_calls(f"<tool_call>nonsense</tool_call>{HERMES}")
    assert [bool(call.error) for call in calls] == [True, False]
    assert isinstance(calls[1], ToolCall)


@pytest.mark.parametrize("text", [text for text, *_ in CASES] + ["a < b [TOOL", "x <|python", "f(x) = {1}"])
def test_a_growing_answer_shows_a_prefix_of_its_content(text):
    content, _ = parse_tool_calls(text)
    shown = [text[: visible_length(text[:end])] for end in range(len(text) + 1)]
    for earlier, later in itertools.pairwise(shown):
        assert later.startswith(earlier)
    assert content.startswith(shown[-1])


@pytest.mark.parametrize("marker", MARKERS)
def test_no_part_of_a_marker_is_shown(marker):
    text = "Let me see. " + marker
    for end in range(len(text) + 1):
        assert visible_length(text[:end]) <= len("Let me see.")


@pytest.mark.parametrize(
    ("template", "named", "free"),
    [
        ("... <tool_call>\n ...", '<tool_call>\n{"name": "f", "arguments":', '<tool_call>\n{"name": "'),
        ("... [TOOL_CALLS] [ ...", '[TOOL_CALLS] [{"name": "f", "arguments":', '[TOOL_CALLS] [{"name": "'),
        ("{{- '{\"name\": \"' + name + '\", ' }}{{- '\"parameters\": ' }}", None, None),
        ("... <|python_tag|> ...", '{"name": "f", "parameters":', '{"name": "'),
        ("no tools at all", None, None),
    ],
)
def test_a_forced_call_begins_as_the_template_writes_calls(template, named, free):
    if "parameters" in template:
        named, free = '{"name": "f", "parameters":', '{"name": "'
    assert forced_beginning(template, "f") == named
    assert forced_beginning(template, None) == free
    if named:
        assert parse_tool_calls(named + "{}}")[1][0].name == "f"


@pytest.mark.parametrize(("begin", "end"), [("<tool_call>", "</tool_call>"), ("", ""), ("[TOOL_CALLS] [", "]")])
def test_a_call_nested_beyond_the_parsers_depth_is_broken(begin, end):
    deep = '{"name": "search", "arguments": {"q": ' + "[" * 100_000 + "]" * 100_000 + "}}"
    _, calls = parse_tool_calls(begin + deep + end)
    assert [(call.name, call.arguments) for call in calls] == [("search", None)]
    assert "recursion" in calls[0].error
