"""The DPO recipe runs a few steps on the small data and on a file, and says what changed."""

import json

import pytest

from tests.tinker_cookbook.recipes.runs import metrics_of
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.preference.dpo.train import CLIConfig, build_config, cli_main


@pytest.mark.long
def test_a_few_steps_on_the_small_data(engine, tmp_path, capsys):
    cli_main(CLIConfig(log_path=str(tmp_path / "run"), batch_size=8, lora_rank=4, max_steps=2, save_every=0))
    rows = metrics_of(tmp_path / "run")
    assert rows[0]["dpo_loss"] == pytest.approx(0.693, abs=1e-3)
    assert [row["step"] for row in rows if "style/preferred" in row] == [0, 2]
    said = capsys.readouterr().out
    for metric in ("test/accuracy", "style/preferred", "style/true"):
        assert f"{metric} " in said


def test_pairs_of_a_file(engine, tmp_path):
    pairs = [{"prompt": f"What is {n}?", "chosen": "A number.", "rejected": f"{n}"} for n in range(12)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    cli_main(
        CLIConfig(
            dataset=str(tmp_path / "pairs.jsonl"),
            test_size=2,
            loss="ipo",
            log_path=str(tmp_path / "run"),
            batch_size=4,
            lora_rank=4,
            max_steps=1,
            save_every=0,
        )
    )
    rows = metrics_of(tmp_path / "run")
    assert "ipo_loss" in rows[0]
    assert "test/accuracy" in rows[-1]
    assert not any("style/preferred" in row for row in rows)


def test_what_is_set_reaches_the_trainer():
    hub = build_config(
        CLIConfig(model_name="Qwen/Qwen3-8B", dataset="hhh", reference_model_name="Qwen/Qwen3-8B")
    )
    assert (hub.learning_rate, hub.dpo_beta, hub.reference_model_name) == (1e-5, 0.1, "Qwen/Qwen3-8B")
    assert hub.dataset_builder.common_config.batch_size == 256
    assert hub.evaluator_builders == []
    with pytest.raises(ConfigurationError, match="train_cli loss=kto"):
        CLIConfig(loss="kto")
