"""Context-local values: a copied context starts with them and then diverges, except inside a run."""

import threading
from contextvars import copy_context

import pytest

from ragbias.frameworks.run_state import ContextScoped
from support.concurrency import side_by_side


@pytest.fixture
def values() -> ContextScoped[list[int]]:
    return ContextScoped("test", lambda before: list(before or ()))


def test_a_copied_context_inherits_and_does_not_write_back(values):
    assert values.get() is None
    values.get_writable().append(1)
    copied = copy_context()
    copied.run(lambda: values.get_writable().append(2))
    assert (values.get(), copied.run(values.get)) == ([1], [1, 2])


def test_what_is_changed_after_the_copy_stays_here(values):
    values.get_writable().append(1)
    copied = copy_context()
    values.get_writable().append(2)
    assert copied.run(values.get) == [1]


def test_copies_in_a_run_share_the_value_with_the_caller(values):
    values.get_writable().append(1)
    end = values.begin()
    first, second = copy_context(), copy_context()
    first.run(lambda: values.get_writable().append(2))
    assert second.run(values.get) == values.get() == [1, 2]
    end()
    second.run(lambda: values.get_writable().append(3))
    assert (values.get(), second.run(values.get)) == ([1, 2], [1, 2, 3])


def test_a_run_changes_nothing_for_those_who_were_there_before(values):
    values.get_writable().append(1)
    request = copy_context()
    values.begin()
    values.get_writable().append(2)
    assert request.run(values.get) == [1]


def test_a_run_may_be_ended_anywhere_and_begin_anew(values):
    values.get_writable().append(1)
    end = values.begin(empty=True)
    assert values.get() is None
    values.get_writable().append(2)
    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    copy_context().run(lambda: values.get_writable().append(3))
    assert values.get() == [2]
    values.forget()
    assert values.get() is None


def test_runs_inside_of_one_another_keep_apart(values):
    values.begin()
    values.get_writable().append(1)
    end = values.begin()
    values.get_writable().append(2)
    end()
    assert values.get() == [1, 2]


def test_the_threads_of_a_run_lose_nothing(values):
    values.begin()
    side_by_side(
        [
            threading.Thread(target=copy_context().run, args=(lambda: values.get_writable().append(1),))
            for _ in range(32)
        ]
    )
    assert values.get() == [1] * 32


def test_a_value_may_be_invalidated_where_it_came_from(values):
    values.get_writable().append(1)
    copy_context().run(values.invalidate)
    assert values.get() is None
    values.get_writable().append(2)
    assert values.get() == [2]
