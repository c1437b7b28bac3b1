import pytest
from transformers import PreTrainedModel

from conftest import random_model


@pytest.fixture
def model() -> PreTrainedModel:
    return random_model("llama")
