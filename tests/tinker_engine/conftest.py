from pathlib import Path

import pytest

from tinker_engine.errors import ModelError
from tinker_engine.model.folders import resolve
from tinker_engine.model.load import LoadedModel, load_model

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The real model, where it was pulled. Tests that use it are marked `real`."""
    try:
        return resolve(SMOLLM2)
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture
def smollm2(smollm2_folder: Path) -> LoadedModel:
    """Loaded anew each time: a decoder takes the weights out of it."""
    return load_model(SMOLLM2, device="cpu", dtype="float32")
