"""The last report is visible to the caller and not to other contexts."""

from __future__ import annotations

import gc
from contextvars import copy_context

import pytest

from ragbias.frameworks.run_state import LastReports, Owner

FIRST, SECOND = {"n_found": 1}, {"n_found": 2}
OWNER = Owner()


@pytest.fixture
def reports() -> LastReports:
    return LastReports("test")


def test_each_owner_has_its_own(reports):
    one, other = Owner(), Owner()
    reports.note(one, FIRST)
    reports.note(other, SECOND)
    assert (reports.last(one), reports.last(other), reports.last(Owner())) == (FIRST, SECOND, None)


def test_the_steps_of_a_run_leave_their_reports_to_the_caller(reports):
    end = reports.begin(empty=True)
    copy_context().run(reports.note, OWNER, FIRST)
    assert reports.last(OWNER) == FIRST
    end()
    copy_context().run(reports.note, OWNER, SECOND)
    assert reports.last(OWNER) == FIRST


@pytest.mark.parametrize("start", [LastReports.forget, LastReports.begin, lambda reports: reports.begin(empty=True)])
def test_a_context_that_starts_anew_leaves_the_caller_alone(reports, start):
    def answer() -> None:
        start(reports)
        reports.note(OWNER, SECOND)
        assert reports.last(OWNER) == SECOND

    reports.note(OWNER, FIRST)
    copy_context().run(answer)
    assert reports.last(OWNER) == FIRST


def test_a_run_begins_without_reports_unless_it_is_a_part(reports):
    reports.note(OWNER, FIRST)
    reports.begin()
    assert reports.last(OWNER) == FIRST
    reports.begin(empty=True)
    assert reports.last(OWNER) is None
    reports.note(OWNER, FIRST)
    reports.forget()
    assert reports.last(OWNER) is None


def test_reports_are_forgotten_with_their_owners(reports):
    reports.begin()
    for _ in range(100):
        reports.note(Owner(), FIRST)
    gc.collect()
    reports.begin()
    reports.note(OWNER, SECOND)
    assert len(reports.get()) == 1
