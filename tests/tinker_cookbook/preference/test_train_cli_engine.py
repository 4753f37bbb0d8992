"""The command and the judges, with the real engine and its tiny model."""

import asyncio
import json
import math
from pathlib import Path

import pytest

from tests.server import running_server
from tests.tinker_cookbook.recipes.runs import checkpoints_of, metrics_of
from tests.tinker_cookbook.rl.tiny import MODEL
from tinker_cookbook.preference import train_cli
from tinker_cookbook.preference.comparison_policy_evaluator import ComparisonEvaluator
from tinker_cookbook.preference.judge_evaluator import JudgeEvaluatorBuilder
from tinker_cookbook.preference.pair_files import PairFileBuilder
from tinker_cookbook.preference.preference_datasets import ChatDatasetBuilderFromComparisons
from tinker_cookbook.preference.types import PreferenceModelBuilderFromVerdictLogprob
from tinker_cookbook.service import connect
from tinker_cookbook.supervised import train
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture(autouse=True)
def where_the_user_is(server, tmp_path, monkeypatch):
    monkeypatch.setenv("TINKER_BASE_URL", server.url)
    monkeypatch.setenv("TINKER_API_KEY", server.key)
    monkeypatch.chdir(tmp_path)


def pair(number: int) -> dict:
    return {"prompt": f"What is {number} + 1?", "chosen": f"{number + 1}, sir.", "rejected": f"{number + 1}."}


def write(rows: list[dict], name: str = "my.jsonl") -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def test_pairs_are_trained_on_and_the_same_command_goes_on(caplog, capfd):
    write([*(pair(i) for i in range(20)), {"prompt": "x", "chosen": "y"}])
    command = [
        "pairs=my.jsonl",
        "lora_rank=4",
        "batch_size=4",
        "eval_every=2",
        "sample_tokens=4",
        "num_samples=1",
    ]
    with caplog.at_level("INFO"):
        assert train_cli.main([*command, "max_steps=2", "learning_rate=1e-3"]) == 0
    assert "my.jsonl: 21 rows of pairs, 20 pairs with a winner, 0 ties" in caplog.text
    assert "line 21: it has the columns chosen, prompt, and needs chosen and rejected" in caplog.text
    assert "18 pairs to train on, 2 held out" in caplog.text
    run = "runs/dpo-my-tiny-chat"
    assert "sample: " in Path(run, "logs.log").read_text()
    tests = {row["step"]: row["test/margin"] for row in metrics_of(run) if "test/margin" in row}
    assert set(tests) == {0, 2}
    assert tests[2] > 0.01 > abs(tests[0])
    assert "held-out preferences, step 0 → 2: accuracy" in capfd.readouterr().err

    more = ["learning_rate=1e-3", "max_steps=3", "eval_every=0", "behavior_if_log_dir_exists=resume"]
    assert train_cli.main([each for each in command if "eval" not in each] + more) == 0
    assert {row["step"] for row in metrics_of(run) if "dpo_loss" in row} == {0, 1, 2}


def test_marked_answers_are_trained_on_with_kto():
    rows = [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row in (pair(i) for i in range(6))
        for side in ("chosen", "rejected")
    ]
    command = [
        f"pairs={write(rows)}",
        "loss=kto",
        "lora_rank=4",
        "batch_size=4",
        "max_steps=1",
        "log_path=run",
    ]
    assert train_cli.main([*command, "num_samples=0", "test_size=4"]) == 0
    assert any("test/kto_loss" in row for row in metrics_of("run"))


def test_what_the_user_gets_wrong_is_one_line(capsys):
    write([{"text": "no preferences here"}])
    assert train_cli.main(["pairs=my.jsonl"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: my.jsonl has the columns text")
    assert not Path("runs").exists()


def test_a_judge_is_measured_while_it_is_trained_and_judges_a_policy_then():
    comparisons = PairFileBuilder(path=write([pair(i) for i in range(10)]), test_size=2)
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=MODEL, renderer_name="chatml", max_length=None, batch_size=8
    )
    measure = [
        JudgeEvaluatorBuilder(
            comparison_builder=comparisons,
            model_name=MODEL,
            renderer_name="chatml",
            verdict=verdict,
            name=verdict,
        )
        for verdict in ("says", "logprob")
    ]
    config = train.Config(
        log_path="judge",
        model_name=MODEL,
        recipe_name="judge",
        renderer_name="chatml",
        dataset_builder=ChatDatasetBuilderFromComparisons(
            common_config=common, comparison_builder=comparisons, swap=True
        ),
        evaluator_builders=list(measure),
        learning_rate=3e-3,
        lora_rank=4,
        num_epochs=2,
        eval_every=2,
    )
    asyncio.run(train.main(config))
    rows = metrics_of("judge")
    assert {row["step"] for row in rows if "logprob/accuracy" in row} == {0, 2}
    assert all(0 <= row["says/accuracy"] <= 1 for row in rows if "says/accuracy" in row)
    nlls = [row["test/nll"] for row in rows if "test/nll" in row]
    assert nlls[-1] < nlls[0]

    build = PreferenceModelBuilderFromVerdictLogprob(
        renderer_name="chatml", model_name=MODEL, rm_weights_path=checkpoints_of("judge")[-1]["sampler_path"]
    )
    _, held_out = comparisons.get_labeled_comparisons()
    assert held_out
    asyncio.run(_judge_and_evaluate(build, [labeled.comparison for labeled in held_out]))


async def _judge_and_evaluate(build, comparisons):
    judge = build()
    score = await judge(comparisons[0])
    assert -1 < score < 1
    assert await judge(comparisons[0].swap()) == pytest.approx(-score, abs=1e-6)
    evaluator = ComparisonEvaluator(build, comparisons, "chatml", MODEL, max_tokens=8)
    policy = await connect().create_sampling_client_async(base_model=MODEL)
    metrics = await evaluator(policy)
    assert 0 < metrics["comparison/win_rate"] < 1
    assert math.isfinite(metrics["comparison/win_rate_stderr"])
