"""chat_sl on the real engine, and which data a name means."""

import json
import sys
from types import ModuleType
from typing import Any

import pytest

from tests.tinker_cookbook.recipes.runs import checkpoints_of, last_value, metrics_of
from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.recipes.chat_sl import chat_datasets, sweep
from tinker_cookbook.recipes.chat_sl.train import CLIConfig, build_config, cli_main
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilder

SMALL: dict[str, Any] = {"lora_rank": 8, "batch_size": 16, "save_every": 0}


@pytest.mark.long
def test_the_small_variant_takes_on_the_style(engine, tmp_path):
    cli = CLIConfig(log_path=str(tmp_path / "run"), max_steps=24, learning_rate=1e-2, eval_every=100, **SMALL)
    cli_main(cli)
    rows = metrics_of(tmp_path / "run")
    assert [row["step"] for row in rows] == list(
        range(25)
    )  # the last row is the evaluation of what it became
    assert rows[0]["test/in_style"] == 0.0
    assert last_value(tmp_path / "run", "test/nll") < 0.2 * rows[0]["test/nll"]
    assert last_value(tmp_path / "run", "test/in_style") > 0.5
    assert checkpoints_of(tmp_path / "run")[-1]["name"] == "final"


def test_a_file_of_ones_own(engine, tmp_path):
    file = tmp_path / "mine.jsonl"
    messages = [{"role": "user", "content": "Ping?"}, {"role": "assistant", "content": "Pong, pong."}]
    file.write_text(f"{json.dumps({'messages': messages})}\n" * 20)
    cli = CLIConfig(dataset=str(file), test_size=4, batch_size=4, lora_rank=8, max_length=512, save_every=0)
    cli_main(cli)
    log_path = build_config(cli).log_path  # named after the settings
    assert "mine-tinker-engine-tiny-chat-8rank" in log_path
    rows = metrics_of(log_path)
    assert len(rows) == 5
    assert rows[-1]["test/nll"] < rows[0]["test/nll"]


@pytest.mark.long
def test_a_sweep_in_processes_against_one_engine(engine, tmp_path):
    config = CLIConfig(
        max_steps=2, eval_every=0, **SMALL
    )  # nothing to sample: it is the processes that count
    rows = sweep.run(cli_main, config, sweep_dir=str(tmp_path), max_parallel=2, learning_rate=[1e-3, 1e-2])
    assert [row["status"] for row in rows] == ["done", "done"], rows
    first, second = (metrics_of(tmp_path / f"learning_rate={rate}") for rate in ("0.001", "0.01"))
    assert first[0]["train_mean_nll"] == second[0]["train_mean_nll"]  # the same data and first weights
    assert first[1]["train_mean_nll"] != second[1]["train_mean_nll"]


def test_the_config_follows_the_model_and_the_data():
    tiny = build_config(CLIConfig())
    assert type(tiny.dataset_builder) is chat_datasets.KnightBuilder
    assert tiny.learning_rate == pytest.approx(3.1e-3, rel=0.01)
    assert _common(tiny.dataset_builder).batch_size == 32
    assert len(tiny.evaluator_builders) == 1

    real = build_config(CLIConfig(model_name="Qwen/Qwen3-8B", dataset="tulu3", learning_rate=5e-4))
    assert type(real.dataset_builder) is chat_datasets.Tulu3Builder
    assert (real.learning_rate, real.renderer_name) == (5e-4, "qwen3")
    assert _common(real.dataset_builder).batch_size == 256
    assert real.evaluator_builders == []
    assert real.log_path != tiny.log_path

    other = build_config(CLIConfig(dataset="some-org/some-data", test_size=7)).dataset_builder
    assert isinstance(other, FromConversationFileBuilder)
    assert (other.file_path, other.test_size) == ("some-org/some-data", 7)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises((ConfigurationError, DataFormatError), match=r"no\.jsonl"):
        build_config(CLIConfig(dataset=str(tmp_path / "no.jsonl"))).dataset_builder()


# --- data sets of the hub, from a stand-in for `datasets` --------------------------------------------------


class Rows(list):
    def shuffle(self, seed: int) -> "Rows":
        return Rows(self[seed % 2 :] + self[: seed % 2])

    def select(self, indices) -> "Rows":
        return Rows(self[i] for i in indices)


@pytest.fixture
def hub(monkeypatch) -> dict[str, dict[str, Rows]]:
    def row(i: int) -> dict[str, Any]:
        turns = [("user", "One?"), ("assistant", "Two."), ("user", "Three?"), ("assistant", f"Number {i}.")]
        return {"messages": [{"role": role, "content": content} for role, content in turns], "id": i}

    rows = Rows(row(i) for i in range(20))
    known = {
        "HuggingFaceH4/no_robots": {"train": rows, "test": Rows(rows[:3])},
        "allenai/tulu-3-sft-mixture": {"train": rows},
    }
    module: Any = ModuleType("datasets")
    module.load_dataset = known.__getitem__
    monkeypatch.setitem(sys.modules, "datasets", module)
    return known


def _common(builder: Any):
    assert isinstance(builder, ChatDatasetBuilder)
    return builder.common_config


def test_no_robots_learns_every_answer(hub):
    builder = build_config(CLIConfig(dataset="no_robots", batch_size=8)).dataset_builder
    train, test = builder()
    assert test is not None
    assert (len(train), len(train.get_batch(0)), len(test), len(test.get_batch(0))) == (2, 8, 1, 3)
    assert _answers_learned(train.get_batch(0)[0]) == 2


def test_tulu_learns_the_last_answer_and_holds_out_the_first_rows(hub):
    common = _common(build_config(CLIConfig(dataset="tulu3", batch_size=8)).dataset_builder)
    train, test = chat_datasets.Tulu3Builder(common_config=common, test_size=4)()
    assert test is not None
    assert (len(train), len(test.get_batch(0))) == (2, 4)
    assert _answers_learned(train.get_batch(0)[0]) == 1


def _answers_learned(datum) -> int:
    """Runs of tokens that have weight."""
    learned = [weight > 0 for weight in datum.loss_fn_inputs["weights"].tolist()]
    return sum(now and not before for before, now in zip([False, *learned], learned, strict=False))


def test_without_datasets_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    builder = build_config(CLIConfig(dataset="no_robots")).dataset_builder
    with pytest.raises(ConfigurationError, match="pip install datasets"):
        builder()
