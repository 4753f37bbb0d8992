"""The plain loop on the real engine."""

import json
import math

import chz
import pytest

from tests.tinker_cookbook.recipes.runs import checkpoints_of, metrics_of
from tinker_cookbook.recipes import sl_loop
from tinker_cookbook.renderers import Message


def config(folder, **fields) -> sl_loop.Config:
    return sl_loop.Config(log_path=str(folder), batch_size=8, lora_rank=8, save_every=2, **fields)


@pytest.mark.long
def test_a_run_that_was_cut_short_goes_on_to_the_same_end(engine, tmp_path):
    sl_loop.main(config(tmp_path / "whole", max_steps=5))
    sl_loop.main(config(tmp_path / "parts", max_steps=3))
    assert checkpoints_of(tmp_path / "parts")[-1]["batch"] == 3  # and not all of the data
    sl_loop.main(config(tmp_path / "parts", max_steps=5))

    whole, parts = metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "parts")
    assert [row["step"] for row in parts] == [0, 1, 2, 3, 4]
    for name in ("train_mean_nll", "train_mean_bpb", "num_sequences", "num_tokens", "learning_rate"):
        assert [row[name] for row in parts] == [row[name] for row in whole], name
    assert whole[-1]["progress"] == 1.0
    assert whole[-1]["train_mean_nll"] < whole[0]["train_mean_nll"]
    assert math.isclose(whole[1]["learning_rate"], 3e-3 * (1 - 1 / 177))  # 1420 conversations
    assert [(each["name"], each["batch"]) for each in checkpoints_of(tmp_path / "whole")] == [
        ("000002", 2),
        ("000004", 4),
        ("final", 5),
    ]

    sl_loop.main(config(tmp_path / "whole", max_steps=5))
    assert "is complete: 5 of 5 steps" in (tmp_path / "whole" / "logs.log").read_text()
    assert len(metrics_of(tmp_path / "whole")) == 5
    assert len(checkpoints_of(tmp_path / "whole")) == 3


def test_it_learns_a_file_of_ones_own(engine, tmp_path):
    messages = [Message(role="user", content="Ping?"), Message(role="assistant", content="Pong, pong, pong.")]
    file = tmp_path / "data.jsonl"
    file.write_text(f"{json.dumps({'messages': messages})}\n" * 32)
    run = chz.replace(config(tmp_path / "run"), file_path=str(file), learning_rate=1e-2)
    sl_loop.main(run)
    losses = [row["train_mean_nll"] for row in metrics_of(tmp_path / "run")]
    assert len(losses) == 4
    assert losses[-1] < 0.5 * losses[0]
    final = checkpoints_of(tmp_path / "run")[-1]
    assert final["state_path"].endswith("/weights/final")
    assert final["sampler_path"].endswith("/sampler_weights/final")
