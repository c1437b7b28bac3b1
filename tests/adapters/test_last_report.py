"""The last report: the caller finds it, other contexts do not."""

from __future__ import annotations

from contextvars import copy_context

import pytest

from ragbias.adapters.last_report import LastReports

FIRST, SECOND = {"n_found": 1}, {"n_found": 2}


@pytest.fixture
def reports() -> LastReports:
    return LastReports("test")


def test_each_owner_has_its_own(reports):
    one, other = object(), object()
    reports.note(one, FIRST)
    reports.note(other, SECOND)
    assert (reports.last(one), reports.last(other), reports.last(object())) == (FIRST, SECOND, None)


def test_a_copied_context_leaves_its_report_to_the_caller(reports):
    reports.clear()
    copy_context().run(reports.note, "owner", FIRST)
    assert reports.last("owner") == FIRST


@pytest.mark.parametrize("start", [LastReports.clear, LastReports.separate])
def test_a_context_that_starts_anew_leaves_the_caller_alone(reports, start):
    def answer() -> None:
        start(reports)
        reports.note("owner", SECOND)
        assert reports.last("owner") == SECOND

    reports.note("owner", FIRST)
    copy_context().run(answer)
    assert reports.last("owner") == FIRST


def test_reports_are_gone_after_clear_and_kept_by_separate(reports):
    reports.note("owner", FIRST)
    reports.separate()
    assert reports.last("owner") == FIRST
    reports.clear()
    assert reports.last("owner") is None
