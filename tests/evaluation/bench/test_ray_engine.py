"""The engine ``ray`` with two workers on this machine."""

import sys
from dataclasses import replace

import pytest

from ragbias.errors import MethodError, MissingExtraError, RunError
from ragbias.evaluation.bench import engines
from ragbias.evaluation.bench.engines import Models, run_by_ray, run_here
from ragbias.evaluation.bench.plan import Plan
from ragbias.methods import CanonicalOrder, NoMethod, Pine
from support.deadly import Deadly

METHODS = {"none": NoMethod(), "canonical-order": CanonicalOrder()}
MEASURES = ("accuracy", "logprob")
ASKED = dict(documents=(4,), positions=(0, 3), limit=6)


@pytest.fixture(scope="module")
def two_workers():
    """One cluster for all tests here; it takes seconds to start."""
    ray = engines.load_ray()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))  # for ``support.deadly``
        engines._start(ray, 2)
        yield
        ray.shutdown()


def found(answered):
    return {(unit.noise, record.key): replace(record, seconds=0) for unit, records in answered for record in records}


@pytest.mark.slow
def test_records_match_the_local_engine_after_a_worker_is_killed(two_workers, tmp_path):
    task = Deadly(**ASKED, mortal=("tiny/3/4/3/0/0",), folder=tmp_path)
    records = found(run_by_ray(Plan({"tiny": METHODS}, ((task,),), 4, MEASURES).units(), "auto", 2))
    assert len(list(tmp_path.iterdir())) == 1  # it has killed
    immortal = Plan({"tiny": METHODS}, ((Deadly(**ASKED),),), 4, MEASURES)
    expected = found(run_here(immortal.units(), Models("auto")))
    assert len(expected) == (6 * 2 + 6) * 2
    assert records == expected and all(len(record.shown) == 4 for record in records.values())
    assert all((record.logprob is None) == again for (again, _), record in records.items())


@pytest.mark.slow
def test_repeated_worker_deaths_and_worker_errors_end_the_run(two_workers, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "TRIES", 2)  # a worker takes seconds to start
    task = Deadly(**ASKED, mortal=("tiny/0/4/0/0/0",), deaths=99, folder=tmp_path)
    with pytest.raises(RunError, match="2 workers died while running task tiny, batch of case 'tiny/0/4/0/0/0'"):
        list(run_by_ray(Plan({"tiny": METHODS}, ((task,),), 4).units(), "auto", 1))
    wrong = Plan({"tiny": {"pine": Pine(layers=(0, 99))}}, ((Deadly(**ASKED),),), 4)
    with pytest.raises(MethodError, match=r"^task tiny, method pine.*99") as raised:
        list(run_by_ray(wrong.units(), "auto", 1))
    assert type(raised.value) is MethodError


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ragbias\[ray\]'"):
        next(run_by_ray(iter(()), "auto", 2))
