"""What the command line decides, says and refuses; that it trains is in test_train_cli_engine."""

import json
from types import SimpleNamespace
from typing import Any

import chz
import pytest

from tests.tinker_cookbook.rl.tiny import MODEL
from tinker_cookbook import hyperparam_utils, service
from tinker_cookbook.exceptions import ConfigurationError, DataFormatError
from tinker_cookbook.preference import train_cli
from tinker_cookbook.preference.outcome import outcome
from tinker_cookbook.preference.train_cli import CLIConfig, Sizes, build_config, default_log_path
from tinker_cookbook.utils.config_dump import dump_config


@pytest.fixture(autouse=True)
def served(monkeypatch) -> list[Any]:
    models = [SimpleNamespace(model_name=MODEL, max_context_length=1024, trainable=True)]

    class Fake:
        def get_server_capabilities(self) -> Any:
            return SimpleNamespace(supported_models=models)

    monkeypatch.setattr(service, "connect", lambda *_: Fake())
    return models


@pytest.fixture
def write(tmp_path):
    def write(rows: list[dict], name: str = "my.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


def pair(number: int, **more: Any) -> dict:
    return {"prompt": f"Say {number}.", "chosen": f"{number}!", "rejected": "No.", **more}


@pytest.fixture
def pairs(write) -> str:
    return write([pair(i) for i in range(100)])


def test_everything_but_the_data_can_be_left_open(pairs):
    config = build_config(CLIConfig(pairs=pairs))
    assert (config.model_name, config.renderer_name, config.loss) == (MODEL, "chatml", "dpo")
    assert config.learning_rate == pytest.approx(hyperparam_utils.get_lr(MODEL) / 10)
    assert (config.num_epochs, config.dpo_beta) == (3, 0.1)
    assert config.log_path == "runs/dpo-my-tiny-chat"
    assert config.dataset_builder.common_config.max_length == 1024
    train, test = config.dataset_builder()
    assert (len(train), len(train.get_batch(0))) == (22, 8)  # 90 pairs in batches of 4
    assert test is not None
    assert sum(len(test.get_batch(i)) for i in range(len(test))) == 20
    (build,) = config.evaluator_builders
    assert type(build()).__name__ == "SampleEvaluator"
    assert dump_config(config)


def test_what_is_given_is_kept(pairs):
    cli = CLIConfig(
        pairs=pairs, test_size=0, batch_size=7, learning_rate=1e-5, num_epochs=9, max_length=50, dpo_beta=0.5
    )
    config = build_config(cli)
    assert (config.learning_rate, config.num_epochs, config.dpo_beta) == (1e-5, 9, 0.5)
    common = config.dataset_builder.common_config
    assert (common.batch_size, common.max_length) == (7, 50)
    assert config.evaluator_builders == []
    assert config.dataset_builder()[1] is None


def test_other_losses_have_their_own_beta_and_options(pairs):
    config = build_config(CLIConfig(pairs=pairs, loss="simpo", loss_options=("gamma=1.5",)))
    assert (config.dpo_beta, config.loss_options) == (2.0, {"gamma": 1.5})
    assert config.log_path == "runs/simpo-my-tiny-chat"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": "ppo"}, "no preference loss 'ppo'; use one of dpo, ipo, simpo, orpo, kto"),
        ({"loss_options": ("gamma",)}, "loss_options=gamma: write a name and a number"),
        ({"loss_options": ("gamma=1",)}, "no option gamma"),
        ({"test_pairs": "x.jsonl", "test_size": 3}, "one way to hold out"),
        ({"model_name": "a/b"}, "the server has no model a/b"),
    ],
)
def test_what_cannot_work_is_refused(pairs, options, words):
    with pytest.raises(ConfigurationError, match=words):
        build_config(CLIConfig(pairs=pairs, **options))


def test_what_was_read_is_said(write, caplog):
    rows = [
        pair(0, rejected="0!"),
        pair(1, score_chosen=2, score_rejected=2),
        *(pair(i) for i in range(2, 32)),
    ]
    with caplog.at_level("INFO"):
        build_config(CLIConfig(pairs=write(rows)))
    assert "32 rows of pairs, 30 pairs with a winner, 1 ties" in caplog.text
    assert "my.jsonl, line 1: 'chosen' and 'rejected' are the same" in caplog.text
    assert "28 pairs to train on, 3 held out" in caplog.text
    assert "left out: 1 ties" in caplog.text


def test_kto_takes_marked_answers_and_pairs_and_the_others_pairs_alone(write, pairs):
    marked = write(
        [{"prompt": f"Say {i}.", "completion": f"{i}", "label": i % 2 == 0} for i in range(40)], "m.jsonl"
    )
    train, _ = build_config(CLIConfig(pairs=marked, loss="kto")).dataset_builder()
    assert len(train.get_batch(0)) == 2
    train, test = build_config(CLIConfig(pairs=pairs, loss="kto")).dataset_builder()
    assert test is not None
    assert sum(len(test.get_batch(i)) for i in range(len(test))) == 20
    with pytest.raises(DataFormatError, match="loss=kto"):
        build_config(CLIConfig(pairs=marked))


def test_held_out_prompts_are_answered_each_once(write):
    rows = [{"prompt": f"Say {i // 2}.", "ranking": [f"a{i}", "b", "c"]} for i in range(20)]
    cli = CLIConfig(pairs=write(rows), test_size=18, num_samples=2)
    (build,) = build_config(cli).evaluator_builders
    sampler: Any = build()
    asked = [shown[-1]["content"] for shown, _, _ in sampler._prompts]
    assert len(set(asked)) == 2
    assert all(wanted.startswith("a") for _, _, wanted in sampler._prompts)


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, (1, 3)), (30, (2, 3)), (270, (8, 3)), (900, (32, 3)), (60_000, (32, 1))]
)
def test_sizes_suit_small_and_large_files(count, sizes):
    assert tuple(Sizes.for_count(count, CLIConfig(pairs="x"))) == sizes


def test_the_log_path_is_made_of_names():
    assert (
        default_log_path("ipo", "data/my pairs.jsonl.gz", "Qwen/Qwen3-8B:peft:1")
        == "runs/ipo-my-pairs-Qwen3-8B"
    )


# --- at the end -------------------------------------------------------------------------------------------


def metrics(folder, *rows: dict) -> str:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def test_the_outcome_is_of_what_is_held_out_else_of_the_batches(tmp_path):
    first = {"step": 0, "accuracy": 0.25, "margin": 0.01, "test/accuracy": 0.0, "test/margin": -1e-8}
    last = {"step": 9, "accuracy": 0.75, "margin": 0.5}
    final = {"step": 10, "test/accuracy": 0.9, "test/margin": 1.25}
    said = outcome(metrics(tmp_path, first, last, final))
    assert said.startswith(
        "held-out preferences, step 0 → 10: accuracy 0.000 → 0.900, margin 0.000 → 1.250 ("
    )
    without = {key: value for key, value in first.items() if "/" not in key}
    said = outcome(metrics(tmp_path, without, last))
    assert said == "batches trained on, step 0 → 9: accuracy 0.250 → 0.750, margin 0.010 → 0.500"
    assert outcome(metrics(tmp_path)) == "nothing was measured"


def test_help_tells_of_formats_and_has_a_line_for_every_field(capsys):
    assert train_cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "Ranked lists: the answers under `ranking`" in shown
    for name in chz.chz_fields(CLIConfig):
        assert f"  {name} " in shown
