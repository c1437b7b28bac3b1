"""Handling of missing documents, for both frameworks."""

import threading
import warnings

import pytest

from ragbias.boundaries import Boundaries
from ragbias.call_site import WarnedLines
from ragbias.errors import DocumentNotFoundError, MissingDocumentsWarning, NoDocumentsError
from ragbias.frameworks.missing_documents import LocatedDocuments, MissingDocuments
from ragbias.methods import RoToR

TEXT = "Context: one gate. two gates. three gates. Which?"
SPANS = ((9, 18), (19, 29), (30, 42))
GIVEN = {"documents": ["one gate."]}
SEGMENTER = {"segmenter": "."}


@pytest.fixture
def policy() -> MissingDocuments:
    return MissingDocuments("Retrieve inside the chain")


def found(source, expected, count, absent=0):
    return Boundaries(SPANS[:count], source, expected, "", n_absent=absent)


LOCATED = LocatedDocuments(found("none", 0, 0))  # the boundaries of the request are checked


@pytest.mark.parametrize(
    ("boundaries", "explicit", "error"),
    [
        (found("none", 0, 0), False, NoDocumentsError),
        (found("none", 3, 0), False, NoDocumentsError),
        (found("run", 3, 1), False, NoDocumentsError),
        (found("documents", 3, 2), True, DocumentNotFoundError),
        (found("registry", 3, 3), True, DocumentNotFoundError),
        (found("registry", 3, 3), False, None),
        (found("run", 3, 2), False, DocumentNotFoundError),  # the third one is in the prompt, but cut or changed
        (found("run", 3, 2, absent=1), False, None),  # a chain may drop what it retrieved
        (found("run", 1, 1), False, None),
        (found("documents", 0, 0), False, None),
        (found("run", 3, 3), False, None),
        (found("segmenter", 3, 2), False, DocumentNotFoundError),
        (found("segmenter", 3, 3), True, None),
    ],
)
def test_only_what_misses_documents_is_an_error(lm, policy, boundaries, explicit, error):
    request = lm.prepare(TEXT, boundaries=boundaries)
    documents = ["one gate."] if explicit else None
    policy.check(request, LOCATED, "ignore", documents=documents)
    if error is None:
        policy.check(request, LOCATED, "raise", documents=documents)
    else:
        with pytest.raises(error, match=r"pine needs the retrieved documents.*; on_missing='ignore' silences this\."):
            policy.check(request, LOCATED, "raise", documents=documents)


@pytest.mark.parametrize(
    ("boundaries", "given", "advice"),
    [
        (found("none", 3, 0), {}, "Retrieve inside the chain"),
        (found("none", 3, 0), GIVEN, "Pass documents= as they occur in the prompt, or a segmenter="),
        (found("documents", 3, 2), GIVEN, "Pass documents= as they occur in the prompt, or a segmenter="),
        (found("documents", 3, 1), GIVEN | SEGMENTER, "Pass documents= .*, or leave them to the segmenter"),
        (found("run", 3, 0), {}, "Change the template, or pass a segmenter="),
        (found("documents", 3, 0), GIVEN, "Change the template, or pass a segmenter="),
        (found("none", 3, 0), SEGMENTER, "Let the segmenter find all documents"),
        (found("segmenter", 3, 2), SEGMENTER, "Let the segmenter find all documents"),
    ],
)
def test_the_advice_is_what_the_user_has_not_done(lm, policy, boundaries, given, advice):
    request = lm.prepare(TEXT, boundaries=boundaries)
    with pytest.raises((DocumentNotFoundError, NoDocumentsError), match=rf"in the prompt, so .*\. {advice}"):
        policy.check(request, LOCATED, "raise", **given)


def test_documents_without_a_question_after_them_are_missed(lm, policy):
    request = lm.prepare(TEXT[: SPANS[-1][1]], boundaries=found("run", 3, 3))
    with pytest.raises(NoDocumentsError, match="only the plain model can answer"):
        policy.check(request, LOCATED, "raise")


def test_a_selective_method_that_stays_out_misses_nothing(lm, policy):
    request = lm.prepare(TEXT, boundaries=found("run", 3, 3), method=RoToR(selective=True))
    policy.check(request, LOCATED, "raise")


def test_a_success_does_not_spend_the_missing_warning(lm, policy):
    policy.check(lm.prepare(TEXT, boundaries=found("run", 3, 3)), LOCATED, "warn")
    request = lm.prepare("Hello.", boundaries=found("none", 0, 0))
    with pytest.warns(
        MissingDocumentsWarning, match=r"located none .*\. Retrieve inside .*, or documents=\[\] if"
    ) as seen:
        policy.check(request, LOCATED, "warn")
    assert [each.filename for each in seen] == [__file__]


def test_a_line_warns_once_for_each_reason(lm, policy):
    requests = [
        lm.prepare("Hello.", boundaries=Boundaries((), "none", count, reason))
        for count, reason in ((0, "nothing known"), (3, "0 of 3 appear"), (4, "0 of 4 appear"), (0, "nothing known"))
    ]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for request in requests:
            policy.check(request, LOCATED, "warn")
    assert ["nothing known" in str(each.message) for each in seen] == [True, False]


def test_one_of_several_documents_without_traces_is_no_mistake(lm):
    policy = MissingDocuments("Retrieve inside the chain", frozenset({"run"}))
    policy.check(lm.prepare(TEXT, boundaries=Boundaries(SPANS[:1], "run", 4, "", n_absent=3)), LOCATED, "raise")
    with pytest.raises(NoDocumentsError, match="located 1 of 4"):
        policy.check(lm.prepare(TEXT, boundaries=Boundaries(SPANS[:1], "run", 4, "", n_absent=2)), LOCATED, "raise")


def test_a_call_that_says_there_are_none_is_no_mistake(lm, policy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.check(lm.prepare("Hello.", documents=[]), LOCATED, "warn", documents=[])


def test_in_a_run_the_warning_waits_for_its_end(lm, policy):
    plain = lm.prepare("Hello.", boundaries=found("none", 0, 0))
    located = LocatedDocuments(found("none", 0, 0), warn_at_end=[])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.check(plain, located, "warn")
    with pytest.warns(MissingDocumentsWarning, match="located none in the prompt"):
        located.warn_at_end[0]()


def test_a_complete_source_misses_what_a_chain_may_drop(lm, policy):
    boundaries = found("run", 3, 2, absent=1)
    policy.check(lm.prepare(TEXT, boundaries=boundaries), LOCATED, "raise")
    policy = MissingDocuments("Retrieve inside the chain", frozenset({"run"}))
    with pytest.raises(DocumentNotFoundError, match="located 2 of 3 expected documents in the prompt, so it treats"):
        policy.check(lm.prepare(TEXT, boundaries=boundaries), LOCATED, "raise")


def test_a_warning_names_the_users_line_and_comes_once_for_each(lm, policy):
    request = lm.prepare("Hello.", boundaries=found("none", 3, 0))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            policy.check(request, LOCATED, "warn")
            policy.check(request, LOCATED, "warn")
    assert [each.filename for each in seen] == [__file__, __file__]
    assert seen[1].lineno == seen[0].lineno + 1


def test_a_thread_without_code_of_the_users_warns_once(lm, policy):
    request = lm.prepare("Hello.", boundaries=found("none", 3, 0))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            thread = threading.Thread(target=policy.check, args=(request, LOCATED, "warn"))
            thread.start()
            thread.join()
    assert [each.category for each in seen] == [MissingDocumentsWarning]


def test_a_warning_that_is_an_error_is_raised_each_time():
    lines = WarnedLines()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(MissingDocumentsWarning, match="no documents"):
                lines.warn("no documents", MissingDocumentsWarning)
