"""The same DPO run with the loss computed by the engine and computed here."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server import running_server
from tests.tinker_cookbook.preference.pairs import pairs, polite
from tests.tinker_cookbook.rl.tiny import MODEL
from tinker_cookbook.preference import train_dpo

FIGURES = ("dpo_loss", "margin", "accuracy", "chosen_reward", "rejected_reward", "chosen_nll", "num_pairs")


def run(log: Path, **changes: Any) -> list[dict[str, Any]]:
    config = train_dpo.Config(
        log_path=str(log),
        model_name=MODEL,
        recipe_name="test",
        dataset_builder=pairs([polite(i) for i in range(12)]),
        learning_rate=1e-3,
        label_smoothing=0.05,
        grad_clip_norm=1.0,
        save_every=0,
        eval_every=0,
        lora_rank=8,
        seed=5,
        **changes,
    )
    train_dpo.main(config)
    return [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]


def test_both_routes_give_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_server(tmp_path / "engine") as server:
        monkeypatch.setenv("TINKER_BASE_URL", server.url)
        monkeypatch.setenv("TINKER_API_KEY", server.key)
        monkeypatch.setenv("TINKER_TELEMETRY", "0")
        runs = {route: run(tmp_path / str(route), server_loss=route) for route in (True, False)}
    assert "the dpo loss is computed by the server" in (tmp_path / "True" / "logs.log").read_text()
    assert "the dpo loss is computed here" in (tmp_path / "False" / "logs.log").read_text()
    assert len(runs[True]) == len(runs[False]) >= 3
    for once, twice in zip(runs[True], runs[False], strict=True):
        assert {name: once[name] for name in FIGURES} == pytest.approx(
            {name: twice[name] for name in FIGURES}, rel=1e-3, abs=1e-3
        )
    assert runs[True][-1]["margin"] > runs[True][0]["margin"] + 0.05
