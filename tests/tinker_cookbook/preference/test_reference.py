"""Which reference a run has, and that it is asked once."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tinker

from tests.tinker_cookbook.fake_service import FakeService
from tests.tinker_cookbook.preference.pairs import pairs, polite
from tinker_cookbook.exceptions import ConfigurationError, TrainingError
from tinker_cookbook.preference.reference import ReferenceLogprobs, digest, open_reference, whole_sequence

STATE = "tinker://fake/weights/start"


def config(tmp_path: Path, **changes: Any) -> Any:
    fields = {"reference_model_name": None, "load_checkpoint_path": None, "ttl_seconds": 60, **changes}
    return SimpleNamespace(log_path=str(tmp_path), model_name="fake/model", **fields)


@pytest.fixture
def fake() -> FakeService:
    service = FakeService()
    service.stored[STATE] = ("sft",)
    return service


def opened(
    fake: FakeService, a_config: Any, *, is_resumed: bool = False, policy: tuple[str, ...] = ()
) -> str:
    """What the sampling client was made of."""

    async def run() -> None:
        client: Any = await fake.create_training_client_from_state_async(STATE)
        client.weights = policy
        await open_reference(a_config, fake, client, is_resumed=is_resumed)  # pyright: ignore[reportArgumentType]

    asyncio.run(run())
    return next(call for call in reversed(fake.calls) if call.startswith("sampler ")).removeprefix("sampler ")


def test_a_new_adapter_has_the_base_model_for_reference_also_after_a_resume(fake, tmp_path):
    """W7."""
    assert opened(fake, config(tmp_path)) == "fake/model"
    assert opened(fake, config(tmp_path), is_resumed=True, policy=("step 0",)) == "fake/model"
    assert [call for call in fake.calls if call.startswith("save")] == []


def test_loaded_weights_are_the_reference_and_stay_it(fake, tmp_path):
    a_config = config(tmp_path, load_checkpoint_path=STATE)
    path = opened(fake, a_config, policy=("sft",))
    assert fake.stored[path] == ("sft",)
    again = opened(fake, a_config, is_resumed=True, policy=("sft", "step 0"))
    assert again == path
    assert fake.stored[path] == ("sft",)


@pytest.mark.parametrize("lost", ["snapshot", "record"])
def test_a_snapshot_that_is_gone_is_made_again_from_where_the_run_started(fake, tmp_path, lost, caplog):
    a_config = config(tmp_path, load_checkpoint_path=STATE)
    path = opened(fake, a_config, policy=("sft",))
    if lost == "snapshot":
        del fake.stored[path]
    else:
        (tmp_path / "reference.json").unlink()
    path = opened(fake, a_config, is_resumed=True, policy=("sft", "step 0"))
    assert fake.stored[path] == ("sft",)
    assert ("made again" in caplog.text) == (lost == "snapshot")


def test_a_reference_can_be_named(fake, tmp_path):
    assert opened(fake, config(tmp_path, reference_model_name="other/model")) == "other/model"
    sampler = "tinker://fake/sampler_weights/x"
    assert opened(fake, config(tmp_path, reference_model_name=sampler)) == sampler
    path = opened(fake, config(tmp_path, reference_model_name=STATE), policy=("elsewhere",))
    assert fake.stored[path] == ("sft",)


def test_a_run_does_not_go_on_with_another_reference(fake, tmp_path):
    opened(fake, config(tmp_path))
    with pytest.raises(ConfigurationError, match="reference_model_name=fake/model"):
        opened(fake, config(tmp_path, reference_model_name="other/model"), is_resumed=True)
    assert opened(fake, config(tmp_path, reference_model_name="other/model")) == "other/model"


# --- logprobs ---------------------------------------------------------------------------------------------


class Counting:
    """Gives the i-th token of a sequence the logprob -i."""

    def __init__(self):
        self.asked: list[list[int]] = []
        self.most = self.under_way = 0

    async def compute_logprobs_async(self, prompt: tinker.ModelInput) -> list[float | None]:
        self.asked.append(prompt.to_ints())
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return [None, *(-float(i) for i in range(1, prompt.length))]


def logprobs(client: Any, tmp_path: Path, identity: str = "base", at_once: int = 8) -> ReferenceLogprobs:
    return ReferenceLogprobs(client, identity, str(tmp_path), at_once)


def batch() -> list[tinker.Datum]:
    return pairs([polite(i) for i in range(4)])()[0].get_batch(0)


def test_the_sum_over_the_completion_of_the_whole_sequence(tmp_path):
    client, data = Counting(), batch()
    values = asyncio.run(logprobs(client, tmp_path)(data))
    for datum, value, asked in zip(data, values, client.asked, strict=True):
        targets, weights = (datum.loss_fn_inputs[key].tolist() for key in ("target_tokens", "weights"))
        assert asked == datum.model_input.to_ints() + targets[-1:]
        assert value == -sum(i for i, weight in enumerate(weights, start=1) if weight)


def test_each_example_is_asked_about_once_also_by_a_run_that_resumes(tmp_path):
    client, data = Counting(), batch()
    reference = logprobs(client, tmp_path)
    first = asyncio.run(reference([*data[:4], data[0]]))
    assert len(client.asked) == 4
    everything = asyncio.run(reference(data))
    assert len(client.asked) == 8
    assert everything[:4] == first[:4]
    assert first[4] == first[0]
    later = Counting()
    assert asyncio.run(logprobs(later, tmp_path)(data[::-1])) == everything[::-1]
    assert later.asked == []


def test_what_another_reference_thought_is_not_used(tmp_path):
    asyncio.run(logprobs(Counting(), tmp_path, "one")(batch()))
    other = Counting()
    asyncio.run(logprobs(other, tmp_path, "two")(batch()))
    assert len(other.asked) == 8


def test_a_file_that_a_crash_cut_off_costs_what_is_missing(tmp_path, caplog):
    data = batch()
    asyncio.run(logprobs(Counting(), tmp_path)(data[:2]))
    file = tmp_path / "reference_logprobs.jsonl"
    file.write_text(file.read_text() + '{"reference": "base", "logpro')
    later = Counting()
    asyncio.run(logprobs(later, tmp_path)(data))
    assert len(later.asked) == 6
    rows = [line for line in file.read_text().splitlines() if line.endswith("}")]
    assert sum(len(json.loads(row)["logprobs"]) for row in rows) == 8


def test_what_does_not_come_again_is_not_kept(tmp_path):
    client, data = Counting(), batch()
    asyncio.run(logprobs(client, tmp_path)(data, keep=False))
    assert not (tmp_path / "reference_logprobs.jsonl").exists()


def test_no_more_are_under_way_than_are_allowed(tmp_path):
    client = Counting()
    asyncio.run(logprobs(client, tmp_path, at_once=3)(batch()))
    assert client.most == 3


def test_an_answer_without_logprobs_is_an_error(tmp_path):
    class Silent(Counting):
        async def compute_logprobs_async(self, prompt: tinker.ModelInput) -> list[float | None]:
            return [None] * prompt.length

    with pytest.raises(TrainingError, match="no reference logprob"):
        asyncio.run(logprobs(Silent(), tmp_path)(batch()))


def test_a_digest_tells_apart_what_has_another_logprob():
    datum = batch()[0]
    half = tinker.TensorData.from_torch(0.5 * datum.loss_fn_inputs["weights"].to_torch())
    lighter = tinker.Datum(datum.model_input, {**datum.loss_fn_inputs, "weights": half})
    longer = tinker.Datum(whole_sequence(datum), datum.loss_fn_inputs)
    split = tinker.ModelInput.from_ints(datum.model_input.to_ints()[:3]).append(
        tinker.EncodedTextChunk(tokens=datum.model_input.to_ints()[3:])
    )
    label = tinker.TensorData(data=[1.0], dtype="float32", shape=[1])
    same = tinker.Datum(split, {**datum.loss_fn_inputs, "is_desirable": label})
    assert digest(same) == digest(datum)
    assert len({digest(datum), digest(lighter), digest(longer)}) == 3
