import pytest
from transformers import PreTrainedModel

from support.random_models import random_model


@pytest.fixture
def model() -> PreTrainedModel:
    return random_model("llama")
