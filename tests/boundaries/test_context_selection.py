"""Documents in the question or in other messages are not part of the context, whatever the titles and tags."""

import itertools

import pytest

from ragbias import Prompt
from ragbias.boundaries import Registry, locate
from ragbias.boundaries.sources import KnownText
from ragbias.generation.preparing import split_located
from support.prompts import BRIDGE, LIBRARY, LONG, STATION, known_to, prompt, spans_of


@pytest.mark.parametrize("source", ["documents", "run"])
def test_a_document_only_in_the_question_makes_the_prompt_plain(source):
    text = prompt(STATION, BRIDGE, question=f"Is it true that {LIBRARY}?")
    split = split_located(text, locate(text, **known_to(source, [STATION, BRIDGE, LIBRARY])))
    parts, found, reason = split.parts, split.boundaries, split.why_unsplit
    assert (found.n_found, parts.documents) == (3, ())
    assert "cannot be distinguished" in reason
    given = locate(text, documents=[STATION, BRIDGE])
    assert given.spans == spans_of(text, STATION, BRIDGE)


def test_documents_are_not_joined_across_messages():
    text = f"<|tool|>\n{STATION}\n\n{BRIDGE}<|end|>\n<|assistant|>\nSearching again.<|end|>\n"
    text += f"<|tool|>\n{LIBRARY}\n\n{LONG}\n\n{LONG[:90]}"
    text += "<|end|>\n<|user|>\nWell?"
    found = locate(text, artifacts=[[STATION, BRIDGE, LIBRARY, LONG, LONG[:90]]])
    assert found.spans == (*spans_of(text, LIBRARY, LONG), (text.rindex(LONG[:90]), text.rindex(LONG[:90]) + 90))
    assert "are apart" in found.reason


def test_titles_between_the_documents_do_not_separate_them():
    text = "Results:\n\n" + "\n".join(
        f"Document [{number}](Title: {title}) {document}"
        for number, (title, document) in enumerate([("Station", STATION), ("Bridge", BRIDGE), ("Library", LIBRARY)], 1)
    )
    text += "\n\nQuestion: which?"
    assert locate(text, run=[[STATION, BRIDGE, LIBRARY]]).spans == spans_of(text, STATION, BRIDGE, LIBRARY)


def test_tags_around_the_documents_do_not_separate_them():
    text = "".join(
        f'<doc id="{number}">\n{document}\n</doc>\n' for number, document in enumerate([STATION, BRIDGE, LIBRARY])
    )
    assert locate(text + "Which?", documents=[STATION, BRIDGE]).spans == spans_of(text, STATION, BRIDGE)


@pytest.mark.parametrize("source", ["run", "registry", "run and registry"])
@pytest.mark.parametrize("more", ["", "\nFrom the web: mills burn."])
def test_texts_that_a_program_joins_into_one_document_are_found(source, more):
    outcomes = set()
    for order in itertools.permutations([STATION, BRIDGE, LIBRARY]):
        joined = "\n".join(order) + more
        registry = Registry()
        registry.add(order)
        given = {"run": [[joined], order]} if source == "run" else {"registry": registry}
        if source == "registry":
            registry.add([joined])
        elif source != "run":
            given["run"] = [[joined]]
        text = f"Context information is below.\n-----\n{joined}\n-----\nWhich?"
        found = locate(text, **given)
        assert (found.n_found, found.n_expected, found.reason) == (3, 3, "")
        prompt = Prompt.from_text(text, found.spans)
        outcomes.add((prompt.prefix, frozenset(prompt.documents), prompt.suffix))
    assert len(outcomes) == 1


@pytest.mark.parametrize("strings", [["Which gate is red?", "Where is the gate?"], ["Where is it?", "Who is it?"]])
def test_a_list_of_questions_beside_documents_is_no_retrieval(strings):
    retrieved = [KnownText.of(STATION, {"title": "a"}), KnownText.of(BRIDGE)]
    text = f"Context:\n\n{STATION}\n\n{BRIDGE}\n\nQuestion: Which gate is red?"
    found = locate(text, run=[strings, retrieved])
    assert (found.n_found, found.n_expected, found.reason) == (2, 2, "")
    question = locate("Rewrite this question: Which gate is red?", run=[strings, retrieved])
    assert (question.n_found, question.source) == (0, "none")
