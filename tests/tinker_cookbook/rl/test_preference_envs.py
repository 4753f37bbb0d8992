"""Behaviours 56 to 58."""

import asyncio
import json

import pytest
import tinker

from tests.tinker_cookbook.rl.tiny import END, MODEL, chatml, text_of, tokens_of
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.preference.preference_datasets import ComparisonBuilderFromJsonl
from tinker_cookbook.preference.types import Comparison, PreferenceModel
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.preference_envs import (
    PairwisePreferenceGroupBuilder,
    PairwisePreferenceRLDatasetBuilder,
    PreferenceEnv,
    TournamentPattern,
    get_pairs,
    get_pairs_chunked,
)
from tinker_cookbook.rl.types import Trajectory, Transition

BOTH, ONE = TournamentPattern.ALL_PAIRS_BOTH_WAYS, TournamentPattern.ALL_PAIRS_ONE_WAY
PROMPT = [Message(role="user", content="Say a number.")]


class LargerNumber(PreferenceModel):
    """Answers when as many questions are open as `together`; so it shows that they are asked at the same time."""

    def __init__(self, together: int = 1):
        self.together = together
        self.open = 0
        self.asked: list[Comparison] = []
        self._enough = asyncio.Event()

    async def __call__(self, comparison):
        self.asked.append(comparison)
        self.open += 1
        if self.open >= self.together:
            self._enough.set()
        await asyncio.wait_for(self._enough.wait(), 5)
        a, b = (int(str(side[-1]["content"])) for side in (comparison.completion_A, comparison.completion_B))
        return float((b > a) - (b < a))


def said(text: str) -> Trajectory:
    action = TokensWithLogprobs(tokens_of(text), None)
    return Trajectory([Transition(tinker.ModelInput.empty(), action, 0.0, True)], tinker.ModelInput.empty())


def rewards(model: PreferenceModel, *texts: str, pattern=BOTH, **options):
    group = PairwisePreferenceGroupBuilder(PROMPT, chatml(), pattern, model, len(texts), **options)
    return asyncio.run(group.compute_group_rewards([said(text) for text in texts], []))


def test_pairs():
    assert get_pairs(3, ONE) == [(0, 1), (0, 2), (1, 2)]
    assert sorted(get_pairs(3, BOTH)) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert [len(get_pairs(n, BOTH)) for n in (0, 1, 2, 5)] == [0, 0, 2, 20]


def test_chunked_pairs_stay_within_chunks():
    assert get_pairs_chunked(5, ONE, 2) == [(0, 1), (2, 3)]
    pairs = get_pairs_chunked(10, BOTH, 4)
    assert len(pairs) == 12 + 12 + 2
    assert all(i // 4 == j // 4 for i, j in pairs)
    assert get_pairs_chunked(3, BOTH, 8) == get_pairs(3, BOTH)


@pytest.mark.parametrize("pattern", [BOTH, ONE])
def test_rewards_are_wins_less_losses_per_comparison(pattern):
    given = rewards(LargerNumber(), f"1{END}", f"3{END}", f"2{END}", f"3{END}", pattern=pattern)
    assert [reward for reward, _ in given] == pytest.approx([-1, 2 / 3, -1 / 3, 2 / 3])
    assert given[0][1] == {"win_minus_loss": -1.0, "format": 1.0}


def test_an_answer_without_its_end_loses_one():
    given = rewards(LargerNumber(), f"1{END}", "2")
    assert given == [
        (-1.0, {"win_minus_loss": -1.0, "format": 1.0}),
        (0.0, {"win_minus_loss": 1.0, "format": 0.0}),
    ]


def test_one_answer_alone_has_nobody_to_be_compared_with():
    assert rewards(LargerNumber(), f"1{END}") == [(0.0, {"win_minus_loss": 0.0, "format": 1.0})]


def test_all_comparisons_of_a_group_run_at_the_same_time():
    model = LargerNumber(together=12)
    rewards(model, f"1{END}", f"2{END}", f"3{END}", f"4{END}")
    assert len(model.asked) == 12


def test_a_judge_that_fails_is_the_error_itself():
    class Broken(PreferenceModel):
        async def __call__(self, comparison):
            raise ConnectionError("the judge is away")

    with pytest.raises(ConnectionError, match="away"):
        rewards(Broken(), f"1{END}", f"2{END}")


def test_chunks_bound_who_meets_whom():
    model = LargerNumber()
    rewards(model, *(f"{i}{END}" for i in range(6)), matchup_group_size=2)
    assert len(model.asked) == 6


def test_what_the_judge_sees_can_be_prepared():
    model = LargerNumber()
    given = rewards(
        model, f"no. 1{END}", f"no. 2{END}", content_preprocessor=lambda text: text.removeprefix("no. ")
    )
    assert [reward for reward, _ in given] == [-1.0, 1.0]
    assert model.asked[0].prompt_conversation == PROMPT


@pytest.mark.parametrize(("pattern", "asked"), [(BOTH, 6), (ONE, 3)])
def test_with_a_target_every_answer_meets_it_alone(pattern, asked):
    model = LargerNumber()
    target = [Message(role="assistant", content="2")]
    given = rewards(model, f"1{END}", f"2{END}", f"3{END}", pattern=pattern, eval_target_completion_A=target)
    assert [reward for reward, _ in given] == [-1.0, 0.0, 1.0]
    assert len(model.asked) == asked
    assert model.asked[0].completion_A == target


def test_the_env_is_one_turn_without_a_reward_of_its_own():
    env = PreferenceEnv(PROMPT, chatml())
    prompt, _ = asyncio.run(env.initial_observation())
    assert text_of(prompt.to_ints()).endswith("<|im_start|>assistant\n")
    result = asyncio.run(env.step(tokens_of(f"1{END}")))
    assert (result.reward, result.episode_done) == (0.0, True)


def test_a_data_set_has_the_prompts_of_the_comparisons(tmp_path):
    rows = [
        {
            "comparison": {
                "prompt_conversation": [{"role": "user", "content": f"Question {i}"}],
                "completion_A": [{"role": "assistant", "content": "a"}],
                "completion_B": [{"role": "assistant", "content": "b"}],
            },
            "label": "A",
        }
        for i in range(5)
    ]
    del rows[1]["label"]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    builder = PairwisePreferenceRLDatasetBuilder(
        comparison_builder=ComparisonBuilderFromJsonl(train_path=str(path)),
        batch_size=2,
        policy_renderer_name="chatml",
        policy_model_name=MODEL,
        group_size=3,
        preference_model_builder=LargerNumber,
    )
    dataset, test = asyncio.run(builder())
    assert test is None
    questions = [
        [group.convo_prefix[0]["content"] for group in dataset.get_batch(i)]  # pyright: ignore[reportAttributeAccessIssue]
        for i in range(len(dataset))
    ]
    assert questions == [["Question 0"], ["Question 2", "Question 3"], ["Question 4"]]
    (group,) = dataset.get_batch(2)
    assert len(asyncio.run(group.make_envs())) == 3
    assert group.logging_tags() == ["pair_pref"]
    with pytest.raises(IndexError):
        dataset.get_batch(3)
