"""The last report is visible to the caller and not to other contexts."""

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
    reports.store(one, FIRST)
    reports.store(other, SECOND)
    assert (reports.last_report(one), reports.last_report(other), reports.last_report(Owner())) == (FIRST, SECOND, None)


def test_the_steps_of_a_run_leave_their_reports_to_the_caller(reports):
    end = reports.begin(empty=True)
    copy_context().run(reports.store, OWNER, FIRST)
    assert reports.last_report(OWNER) == FIRST
    end()
    copy_context().run(reports.store, OWNER, SECOND)
    assert reports.last_report(OWNER) == FIRST


@pytest.mark.parametrize("start", [LastReports.forget, LastReports.begin, lambda reports: reports.begin(empty=True)])
def test_a_context_that_starts_anew_leaves_the_caller_alone(reports, start):
    def answer() -> None:
        start(reports)
        reports.store(OWNER, SECOND)
        assert reports.last_report(OWNER) == SECOND

    reports.store(OWNER, FIRST)
    copy_context().run(answer)
    assert reports.last_report(OWNER) == FIRST


def test_a_run_begins_without_reports_unless_it_is_a_part(reports):
    reports.store(OWNER, FIRST)
    reports.begin()
    assert reports.last_report(OWNER) == FIRST
    reports.begin(empty=True)
    assert reports.last_report(OWNER) is None
    reports.store(OWNER, FIRST)
    reports.forget()
    assert reports.last_report(OWNER) is None


def test_reports_are_forgotten_with_their_owners(reports):
    reports.begin()
    for _ in range(100):
        reports.store(Owner(), FIRST)
    gc.collect()
    reports.begin()
    reports.store(OWNER, SECOND)
    assert len(reports.get()) == 1
