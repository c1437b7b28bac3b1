"""The query that ``icr`` finds in a text prompt."""

import pytest

from ragbias.generation.ranking import without_query


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [
        ("Question: Who sings?\nAnswer:", "Question: N/A\nAnswer:"),
        (
            "\n\nAnswer briefly.\nQUERY :  who \n<|end|>\n<|go|>\n",
            "\n\nAnswer briefly.\nQUERY :  N/A \n<|end|>\n<|go|>\n",
        ),
        ("Example question: a\nQuestion: b<|end|>", "Example question: a\nQuestion: N/A<|end|>"),
        ("\nShort.\n Who of them sings?  \n", "\nShort.\n N/A  \n"),
        ("Who?<|end|>assistant of many words<|go|>", "Who?<|end|>N/A<|go|>"),
        ("Question:\nAnswer", "N/A\nAnswer"),
        (" \n<|end|>", None),
        ("", None),
    ],
)
def test_the_query_is_what_is_labelled_so_or_the_longest_line(suffix, expected):
    assert without_query(suffix, ["<|end|>", "<|go|>"]) == expected
