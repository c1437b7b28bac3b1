"""A model that cannot be loaded is refused with what may have been meant."""

import pytest

from ragbias.errors import RunError
from ragbias.evaluation.model_loading import refused_in_one_line


def test_a_name_that_is_nearly_one_of_ours_is_answered_by_that_one():
    with pytest.raises(RunError, match="did you mean 'smollm2'. expected 'tiny'"), refused_in_one_line("smolm2"):
        raise OSError("no such repository")
