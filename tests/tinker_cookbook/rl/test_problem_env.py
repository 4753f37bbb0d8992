"""Behaviour 55."""

import asyncio
import pickle
from functools import partial

import pytest

from tests.tinker_cookbook.rl.tiny import END, MODEL, chatml, text_of, tokens_of
from tinker_cookbook.renderers import Message, get_renderer
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils import logtree


class Seven(ProblemEnv):
    def get_question(self):
        return "What is 3 + 4?"

    def check_answer(self, sample_str):
        return sample_str.endswith("7")

    def check_format(self, sample_str):
        return sample_str.isdigit()

    def get_reference_answer(self):
        return "seven"


def step(env: ProblemEnv, text: str):
    return asyncio.run(env.step(tokens_of(text)))


@pytest.mark.parametrize(
    ("written", "reward", "metrics"),
    [
        (f"7{END}", 1.0, {"format": 1.0, "correct": 1.0}),
        (f"It is 7{END}", 0.9, {"format": 0.0, "correct": 1.0}),
        (f"8{END}", 0.0, {"format": 1.0, "correct": 0.0}),
        (f"It is 8{END}", -0.1, {"format": 0.0, "correct": 0.0}),
        ("7", 0.9, {"format": 0.0, "correct": 1.0}),
        (f"<think>3+4</think>7{END}", 1.0, {"format": 1.0, "correct": 1.0}),
    ],
)
def test_the_reward_is_for_the_answer_less_what_its_form_lacks(written, reward, metrics):
    result = step(Seven(chatml()), written)
    assert result.reward == pytest.approx(reward)
    assert result.metrics == metrics
    assert result.episode_done


@pytest.mark.parametrize(("strict", "reward"), [(True, 0.9), (False, 1.0)])
def test_an_end_of_text_is_no_stop_sequence_unless_that_is_said(strict, reward):
    renderer = get_renderer("role_colon", get_tokenizer(MODEL), model_name=MODEL)
    env = Seven(renderer, require_stop_sequence_for_format=strict)
    assert step(env, f" 7{END}").reward == pytest.approx(reward)


def test_the_question_comes_after_the_prefix():
    prefix = [Message(role="system", content="Think first.")]
    prompt, stop = asyncio.run(Seven(chatml(), convo_prefix=prefix).initial_observation())
    assert text_of(prompt.to_ints()) == (
        "<|im_start|>system\nThink first.<|im_end|>\n<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert stop == chatml().get_stop_sequences()


def test_a_report_has_the_question_the_answer_and_what_it_should_have_been(tmp_path):
    with logtree.init_trace("run", str(tmp_path / "report.html")):
        step(Seven(chatml()), f"It is 8{END}")
    report = (tmp_path / "report.html").read_text()
    for words in ("What is 3 + 4?", "It is 8", "seven", "-0.100"):
        assert words in report


def test_a_group_makes_envs_and_survives_pickle():
    group = pickle.loads(pickle.dumps(ProblemGroupBuilder(partial(Seven, chatml()), 3, "sums")))
    envs = asyncio.run(group.make_envs())
    assert len({id(env) for env in envs}) == 3
    assert group.logging_tags() == ["sums"]
    assert asyncio.run(group.compute_group_rewards([], envs)) == []
