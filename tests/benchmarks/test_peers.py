"""The bookkeeping of the comparison. The contestants themselves are not run here: they need their own environments."""

import random
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from benchmarks.peers import gguf_f16, table
from benchmarks.peers.figures import agreement, contestant_figures, ratios
from benchmarks.peers.processes import Worker
from benchmarks.peers.run import turned
from benchmarks.peers.texts import random_text
from benchmarks.peers.workloads import QUICK, WORKLOADS, Training, evenly
from tinker_engine.model import tiny
from tinker_engine.model.load import load_model

ECHO = """
import sys
from channel import Channel, Turns, serve_sampling
channel = Channel()
channel.receive()
print("what libraries print is no answer")
serve_sampling(channel, lambda job: [([7, 8], [-1.0, -3.0])], {"versions": {}})
"""
JOB = {"temperature": 0.0, "requests": [{"prompt": [1], "max_tokens": 2, "num_samples": 1}]}


class Words:
    """A token a word, and two for one of more than four letters."""

    def encode(self, text: str, /) -> list[int]:
        return [0 for word in text.split() for _ in range(1 + (len(word) > 4))]


def test_ratios_are_taken_round_by_round():
    ours = contestant_figures(answers(1.0, 2.0, 4.0), tokens=8, peak_mb=[100.0, 50.0])
    theirs = contestant_figures(answers(2.0, 6.0, 4.0), tokens=8, peak_mb=[300.0])
    workload = Training("a step", (4, 4), goals={"trl": 1.5}, memory_goals={"trl": 0.8})
    found = ratios({"ours": ours, "trl": theirs}, workload)["trl"]
    assert ours["tokens_per_second"] == 4.0
    assert found == {
        "times_as_fast": 2.0,  # of 2, 3 and 1
        "least_and_most": [1.0, 3.0],
        "share_of_memory": 0.5,
        "goal_times_as_fast": 1.5,
        "goal_share_of_memory": 0.8,
    }


def answers(*seconds: float) -> list[dict[str, float]]:
    return [{"seconds": value, "cpu_seconds": 2 * value} for value in seconds]


def test_greedy_samples_agree_up_to_the_first_difference():
    warm_ups = {
        "ours": {"samples": [[1, 2, 3], [4, 5, 6]]},
        "vllm": {"samples": [[1, 2, 3], [4, 0, 6]]},
    }
    assert agreement(warm_ups) == {"vllm": {"equal_greedy_tokens": 4, "of": 6}}


def test_every_contestant_begins_a_round():
    names = ["a", "b", "c"]
    assert {turned(names, number)[0] for number in range(1, 4)} == set(names)


def test_lengths_have_both_ends_and_no_order():
    assert sorted(evenly(16, 256, 32))[::31] == [16, 256]
    assert evenly(1, 4, 4) == (4, 1, 3, 2)


def test_the_quick_workloads_are_those_of_the_real_run():
    assert list(QUICK) == list(WORKLOADS)
    assert {name: type(each) for name, each in QUICK.items()} == {n: type(w) for n, w in WORKLOADS.items()}


@pytest.mark.parametrize("tokens", [1, 2, 17, 100])
def test_texts_have_exactly_so_many_tokens(tokens: int):
    text = random_text(Words(), tokens, random.Random(tokens))
    assert len(Words().encode(text)) == tokens


def test_a_worker_answers_and_what_it_prints_goes_to_its_log(tmp_path: Path):
    worker = Worker("echo", worker_command(ECHO), {}, tmp_path / "log")
    answer = worker.ask(JOB)
    assert (answer["samples"], answer["mean_logprob"]) == ([[7, 8]], -2.0)
    assert worker.peak_mb()[0] > 1
    worker.stop()
    assert "no answer" in (tmp_path / "log").read_text()


def test_a_worker_that_does_less_than_it_was_asked_is_out(tmp_path: Path):
    worker = Worker("echo", worker_command(ECHO), {}, tmp_path / "log")
    more = {**JOB, "requests": [{"prompt": [1], "max_tokens": 3, "num_samples": 1}]}
    with pytest.raises(SystemExit, match=r"asked for \[3\] tokens, got \[2\]"):
        worker.ask(more)
    worker.stop()


def worker_command(code: str) -> list[str]:
    folder = Path(gguf_f16.__file__).parent
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"]


def test_gguf_has_the_weights_of_the_folder(tmp_path: Path):
    gguf_f16.write(tiny.FOLDER, tmp_path / "model.gguf")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    model = load_model(tiny.NAME, dtype="float32")
    spec, up = model.spec, model.weights["model.layers.0.mlp.up_proj.weight"]
    torch.testing.assert_close(
        torch.from_numpy(np.array(stored["blk.0.ffn_up.weight"].data)).float(), up, rtol=1e-3, atol=1e-6
    )
    query = model.weights["model.layers.0.self_attn.q_proj.weight"]
    rows = np.array(stored["blk.0.attn_q.weight"].data)[: spec.head_dim]
    half = spec.head_dim // 2
    torch.testing.assert_close(torch.from_numpy(rows[0:2]).float(), query[[0, half]], rtol=1e-3, atol=1e-6)


def test_the_table_stands_between_its_marks():
    text = "a\n<!-- x: made by benchmarks.peers.table -->\nold\n<!-- end of x -->\nb"
    made = table.between(text, "x", "new")
    assert "old" not in made
    assert table.between(made, "x", "new") == made
    with pytest.raises(SystemExit, match="marks"):
        table.between("no marks", "x", "new")


def test_a_row_says_how_far_the_goal_is():
    ours = contestant_figures(answers(1.0), tokens=8, peak_mb=[100.0])
    theirs = contestant_figures(answers(2.0), tokens=8, peak_mb=[100.0])
    workload = Training("a step", (8,), goals={"trl": 1.5})
    figures = {
        "what": "a step",
        "tokens": 8,
        "rounds": 1,
        "ratios": ratios({"ours": ours, "trl": theirs}, workload),
    }
    lines = table.workload_table({**figures, "contestants": {"ours": ours, "trl": theirs}}).splitlines()
    assert lines[-1] == "| TRL | 4 | 2.00 (2.00–2.00) | 2.00× (goal 1.5×) | 100 | 1.00 |"
