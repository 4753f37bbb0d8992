"""The plain loop on the real engine."""

import pytest

from tests.tinker_cookbook.recipes.runs import checkpoints_of, metrics_of
from tinker_cookbook.recipes import rl_loop


def config(folder, n_steps: int) -> rl_loop.Config:
    return rl_loop.Config(
        log_path=str(folder),
        n_steps=4,
        max_steps=n_steps,
        batch_size=4,
        group_size=6,
        largest=9,
        lora_rank=4,
        save_every=2,
    )


@pytest.mark.long
def test_a_run_that_was_cut_short_goes_on_to_the_same_end(engine, tmp_path):
    rl_loop.main(config(tmp_path / "whole", 4))
    rl_loop.main(config(tmp_path / "parts", 3))
    rl_loop.main(config(tmp_path / "parts", 4))

    whole, parts = metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "parts")
    assert [row["step"] for row in parts] == [row["step"] for row in whole] == [0, 1, 2, 3]
    for name in ("reward/total", "num_datums", "progress/batch", "optim/lr"):
        assert [row[name] for row in parts] == [row[name] for row in whole], name
    assert whole[-1]["progress/done_frac"] == 1.0
    assert any(row["num_datums"] for row in whole), "some sums are right at times, and not always"
    assert 0 < whole[0]["reward/total"] < 1
    saved = [(each["name"], each["batch"]) for each in checkpoints_of(tmp_path / "whole")]
    assert saved == [("000002", 2), ("final", 4)]

    rl_loop.main(config(tmp_path / "whole", 4))
    assert "is complete" in (tmp_path / "whole" / "logs.log").read_text()
    assert len(checkpoints_of(tmp_path / "whole")) == 2
