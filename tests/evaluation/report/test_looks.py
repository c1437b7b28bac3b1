"""How figures name layers."""

import pytest

from ragbias.evaluation.report.looks import named_layers


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ([3], "layer 3"),
        (range(2, 9), "layers 2 to 8"),
        ([2, 5], "layers 2, 5"),
        ([2, 3, 5, 7, 9], "5 of layers 2 to 9"),
    ],
    ids=["one", "a range", "few", "many"],
)
def test_layers_are_named_as_shortly_as_may_be(layers, named):
    assert named_layers(layers) == named
