"""Documents that the question quotes or another message holds are not the context; titles and tags are no border."""

from ragbias.boundaries import locate
from support.flat_prompts import BRIDGE, LIBRARY, LONG, STATION, prompt, spans_of


def test_a_document_that_only_the_question_quotes_is_not_taken():
    text = prompt(STATION, BRIDGE, question=f"Is it true that {LIBRARY}?")
    assert locate(text, run=[[STATION, BRIDGE, LIBRARY]]).spans == spans_of(text, STATION, BRIDGE)
    assert locate(text, documents=[STATION, BRIDGE, LIBRARY]).spans == spans_of(text, STATION, BRIDGE)


def test_documents_of_another_message_are_not_joined_across_the_border():
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
    assert locate(text + "Which?", run=[[STATION, BRIDGE]]).spans == spans_of(text, STATION, BRIDGE)
