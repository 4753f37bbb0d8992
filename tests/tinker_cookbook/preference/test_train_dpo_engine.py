"""Training on preferences with the real engine and the tiny model."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tinker

from tests.server import running_server
from tests.tinker_cookbook.preference.pairs import pairs, polite, singles
from tests.tinker_cookbook.rl.tiny import MODEL
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.preference.dpo_datasets import PreferenceDataset
from tinker_cookbook.preference.losses import LOSSES

TRAIN, TEST = [polite(i) for i in range(12)], [polite(i) for i in range(30, 34)]
STEPS = 6


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("engine")) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINKER_BASE_URL", running.url)
        patch.setenv("TINKER_API_KEY", running.key)
        patch.setenv("TINKER_TELEMETRY", "0")
        yield running


def config(log: Path, **changes: Any) -> train_dpo.Config:
    """Two epochs of three steps."""
    fields: dict[str, Any] = {
        "log_path": str(log),
        "model_name": MODEL,
        "recipe_name": "test",
        "dataset_builder": pairs(TRAIN, TEST),
        "learning_rate": 1e-3,
        "lr_schedule": "constant",  # so that more steps are the same steps and more
        "warmup_steps": 2,
        "num_epochs": 2,
        "save_every": 2,
        "eval_every": 3,
        "lora_rank": 8,
        **changes,
    }
    return train_dpo.Config(**fields)


def rows(log: Path) -> list[dict[str, Any]]:
    """Without times, and without what depends on how many steps are meant to come and whether some were made before."""
    lines = (log / "metrics.jsonl").read_text().splitlines()
    dropped = ("time/", "progress", "resumed")
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(dropped)}
        for line in lines
    ]


def by_step(log: Path) -> dict[int, dict[str, Any]]:
    """The last row of each, of those that trained."""
    return {row["step"]: row for row in rows(log) if "dpo_loss" in row}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    log = tmp_path_factory.mktemp("alone") / "run"
    train_dpo.main(config(log))
    return log


def test_dpo_tells_pairs_apart_that_it_has_not_seen(undisturbed):
    steps, evaluated = by_step(undisturbed), [row for row in rows(undisturbed) if "test/accuracy" in row]
    assert list(steps) == list(range(STEPS))
    assert [row["step"] for row in evaluated] == [0, 3, STEPS]
    first, last = evaluated[0], evaluated[-1]
    assert steps[0]["dpo_loss"] == pytest.approx(0.6931, abs=1e-3), "the policy is its own reference at first"
    assert steps[0]["margin"] == pytest.approx(0.0, abs=1e-3)
    assert steps[5]["accuracy"] == last["test/accuracy"] == 1.0
    assert last["test/margin"] > first["test/margin"] + 0.5
    assert last["test/dpo_loss"] < first["test/dpo_loss"] - 0.1
    assert last["test/nll"] < first["test/nll"]
    assert steps[5]["num_pairs"] == 4
    assert [steps[i]["learning_rate"] for i in (0, 1, 5)] == [5e-4, 1e-3, 1e-3]


def test_the_first_pair_is_shown(undisturbed):
    log = (undisturbed / "logs.log").read_text()
    assert "chosen example" in log
    assert "rejected example" in log


class Stop(Exception):
    """The script dies."""


def test_a_run_that_was_extended_and_died_goes_on_exactly(undisturbed, tmp_path, monkeypatch):
    """W6, W7, behaviour 85."""
    log = tmp_path / "run"
    log.mkdir()
    shutil.copy(
        undisturbed / "reference_logprobs.jsonl", log
    )  # the sampler may round otherwise in other company
    cache = (log / "reference_logprobs.jsonl").read_text()
    train_dpo.main(config(log, max_steps=3))
    assert json.loads((log / "checkpoints.jsonl").read_text().splitlines()[-1])["final"]

    read, calls = PreferenceDataset.get_batch, iter(range(100))

    def get_batch(self: PreferenceDataset, index: int) -> list[tinker.Datum]:
        if (
            next(calls) == 3
        ):  # after the held-out batch and two of training, of which the first is in no checkpoint
            raise Stop
        return read(self, index)

    monkeypatch.setattr(PreferenceDataset, "get_batch", get_batch)
    with pytest.raises(Stop):
        train_dpo.main(config(log))
    monkeypatch.setattr(PreferenceDataset, "get_batch", read)
    assert max(by_step(log)) == 4
    train_dpo.main(config(log))
    assert by_step(log) == by_step(undisturbed)
    assert (log / "reference_logprobs.jsonl").read_text() == cache, "nothing was asked again"


def test_the_weights_that_were_loaded_are_the_reference_also_after_a_resume(undisturbed, tmp_path):
    start = json.loads((undisturbed / "checkpoints.jsonl").read_text().splitlines()[-1])["state_path"]
    log = tmp_path / "run"
    changes: dict[str, Any] = {"load_checkpoint_path": start, "eval_every": 0, "warmup_steps": 0}
    train_dpo.main(config(log, max_steps=2, **changes))
    recorded = (log / "reference.json").read_text()
    assert json.loads(recorded)["identity"] == start
    train_dpo.main(config(log, max_steps=4, **changes))
    assert (log / "reference.json").read_text() == recorded
    steps = by_step(log)
    assert steps[0]["margin"] == pytest.approx(0.0, abs=1e-3)
    assert steps[3]["margin"] > 0.01, "of a policy that was its own reference again it would be 0"


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "dpo"])
def test_every_loss_makes_a_step(tmp_path, name):
    data = (pairs if LOSSES[name].is_paired else singles)(TRAIN[:4], TEST)
    run_config = config(
        tmp_path,
        dataset_builder=data,
        loss=name,
        dpo_beta=LOSSES[name].usual_beta,
        num_epochs=1,
        warmup_steps=0,
    )
    asyncio.run(train_dpo.train(run_config))
    first, last = (row for row in rows(tmp_path) if f"test/{name}_loss" in row)
    assert last[f"test/{name}_loss"] < first[f"test/{name}_loss"]
    assert (tmp_path / "reference.json").exists() == LOSSES[name].needs_reference


def test_the_clients_of_a_loop_of_ones_own(server, tmp_path):
    service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
    policy, reference = train_dpo.create_dpo_clients(config(tmp_path), service)
    sequence = tinker.ModelInput.from_ints([5, 6, 7, 8])
    inputs = {"target_tokens": [6, 7, 8], "weights": [1.0] * 3}
    datum = tinker.Datum(tinker.ModelInput.from_ints([5, 6, 7]), inputs)  # pyright: ignore[reportArgumentType]
    trained = policy.forward([datum], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist()
    assert reference.compute_logprobs(sequence).result()[1:] == pytest.approx(trained, abs=1e-4)
