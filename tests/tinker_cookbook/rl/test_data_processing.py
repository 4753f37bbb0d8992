"""Episodes into data: where each token, logprob, advantage and mask ends up."""

import pytest
import tinker
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.exceptions import ConfigurationError, DataValidationError
from tinker_cookbook.rl.data_processing import (
    assemble_training_data,
    compute_advantages,
    remove_constant_reward_groups,
    trajectory_to_data,
)
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition

FIELDS = {"target_tokens", "logprobs", "advantages", "mask"}


def turn(
    ob: list[int] | tinker.ModelInput, ac: list[int], reward: float = 0.0, **metrics: float
) -> Transition:
    """The logprob of token t is -t/10."""
    observation = ob if isinstance(ob, tinker.ModelInput) else tinker.ModelInput.from_ints(ob)
    return Transition(
        observation, TokensWithLogprobs(ac, [-t / 10 for t in ac]), reward, False, dict(metrics)
    )


def episode(*turns: Transition) -> Trajectory:
    return Trajectory(list(turns), tinker.ModelInput.empty())


def group(*rewards: float, lengths: list[int] | None = None) -> TrajectoryGroup:
    lengths = lengths or [2] * len(rewards)
    episodes = [episode(turn([1, 2], [5] * n, reward)) for reward, n in zip(rewards, lengths, strict=True)]
    return TrajectoryGroup(episodes, [0.0] * len(rewards), [{} for _ in rewards])


def values(datum: tinker.Datum, name: str) -> list[float]:
    return [round(value, 6) for value in datum.loss_fn_inputs[name].data]


# --- datums -----------------------------------------------------------------------------------------------


def test_observations_that_go_on_from_each_other_make_one_datum():
    one = [1, 2, 3, 4, 5]
    two = [*one, 10, 11, 12, 20, 21]
    three = [*two, 30, 31, 40]
    (datum,) = trajectory_to_data(
        episode(turn(one, [10, 11, 12]), turn(two, [30, 31]), turn(three, [50, 51, 52])), 2.0
    )
    whole = [*three, 50, 51, 52]
    acted = [0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1, 1]
    assert datum.model_input.to_ints() == whole[:-1]
    assert len(datum.model_input.chunks) == 1
    assert datum.loss_fn_inputs.keys() == FIELDS
    assert values(datum, "target_tokens") == whole[1:]
    assert values(datum, "mask") == acted
    assert values(datum, "advantages") == [2.0 * a for a in acted]
    assert values(datum, "logprobs") == [-t / 10 * a for t, a in zip(whole[1:], acted, strict=True)]
    assert {name: tensor.dtype for name, tensor in datum.loss_fn_inputs.items()} == {
        "target_tokens": "int64",
        **dict.fromkeys(FIELDS - {"target_tokens"}, "float32"),
    }


def test_an_observation_that_does_not_go_on_begins_a_datum_of_its_own():
    first, second = trajectory_to_data(episode(turn([1, 2, 3], [4, 5]), turn([1, 2, 9], [6])), 1.0)
    assert first.model_input.to_ints() == [1, 2, 3, 4]
    assert values(first, "mask") == [0, 0, 1, 1]
    assert second.model_input.to_ints() == [1, 2, 9]
    assert values(second, "target_tokens") == [2, 9, 6]
    assert values(second, "mask") == [0, 0, 1]


def test_an_observation_shorter_than_what_was_said_is_no_continuation():
    assert len(trajectory_to_data(episode(turn([1, 2, 3], [4, 5]), turn([1, 2, 3, 4], [5])), 1.0)) == 2


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.booleans()), min_size=1, max_size=6))
def test_every_sampled_token_is_trained_on_once_and_nothing_else(turns):
    """Each turn: new tokens, sampled tokens, whether the observation goes on from before."""
    said: list[int] = []
    transitions: list[Transition] = []
    for number, (new, sampled, goes_on) in enumerate(turns):
        before = said if goes_on else [900 + number]
        ob = [*before, *range(100 * number, 100 * number + new)]
        ac = [50 + number] * sampled
        transitions.append(turn(ob, ac))
        said = [*ob, *ac]
    data = trajectory_to_data(episode(*transitions), 1.0)
    assert len(data) == 1 + sum(not goes_on for _, _, goes_on in turns[1:])
    trained = [
        int(target)
        for datum in data
        for target, acted in zip(values(datum, "target_tokens"), values(datum, "mask"), strict=True)
        if acted
    ]
    assert trained == [token for each in transitions for token in each.ac.tokens]
    for datum in data:
        assert {len(tensor.data) for tensor in datum.loss_fn_inputs.values()} == {datum.model_input.length}


def test_a_turn_that_could_not_be_parsed_stays_in_the_context_and_out_of_the_loss():
    first, second = [1, 2], [1, 2, 3, 4, 5]
    (datum,) = trajectory_to_data(
        episode(turn(first, [3, 4], parse_error_masked=1.0), turn(second, [6, 7])), 3.0
    )
    assert datum.model_input.to_ints() == [1, 2, 3, 4, 5, 6]
    assert values(datum, "mask") == [0, 0, 0, 0, 1, 1]
    assert values(datum, "advantages") == [0, 0, 0, 0, 3, 3]
    assert values(datum, "logprobs") == [0, -0.3, -0.4, 0, -0.6, -0.7], "kept all the same"


def test_an_episode_that_ended_before_it_began_gives_no_datum_and_still_counts():
    nothing = Transition(tinker.ModelInput.empty(), TokensWithLogprobs([], None), -1.0, True)
    assert trajectory_to_data(episode(nothing), 1.0) == []
    played = group(1.0)
    both = TrajectoryGroup([episode(nothing), *played.trajectories_G], [0.0, 0.0], [{}, {}])
    (advantages_G,) = compute_advantages([both])
    assert advantages_G.tolist() == [-1.0, 1.0]
    data_D, metadata_D = assemble_training_data([both], [advantages_G])
    assert [values(datum, "advantages") for datum in data_D] == [[0, 1, 1]]
    assert metadata_D == [{"group_idx": 0, "traj_idx": 1}]


def test_images_are_compared_whole_and_count_by_their_length():
    def seen(name: bytes, *more: int) -> tinker.ModelInput:
        image = tinker.types.ImageChunk(data=name, format="png", expected_tokens=3)
        text = [tinker.EncodedTextChunk(tokens=list(more))] if more else []
        return tinker.ModelInput(chunks=[tinker.EncodedTextChunk(tokens=[1]), image, *text])

    (datum,) = trajectory_to_data(episode(turn(seen(b"a", 2), [5]), turn(seen(b"a", 2, 5, 6), [7])), 1.0)
    assert datum.model_input.length == 1 + 3 + 3
    assert values(datum, "mask") == [0, 0, 0, 0, 1, 0, 1]
    assert values(datum, "target_tokens")[-4:] == [2, 5, 6, 7]
    assert (
        len(trajectory_to_data(episode(turn(seen(b"a", 2), [5]), turn(seen(b"b", 2, 5, 6), [7])), 1.0)) == 2
    )


def test_what_cannot_be_trained_on_is_refused():
    with pytest.raises(DataValidationError):
        trajectory_to_data(episode(turn([], [5])), 1.0)  # one token has nothing before it
    unscored = Transition(tinker.ModelInput.from_ints([1]), TokensWithLogprobs([5], None), 0.0, True)
    with pytest.raises(ValueError, match="no logprobs"):
        trajectory_to_data(episode(unscored), 1.0)
    odd = Transition(tinker.ModelInput.from_ints([1]), TokensWithLogprobs([5, 6], [-1.0]), 0.0, True)
    with pytest.raises(ValueError, match="2 tokens has 1 logprobs"):
        trajectory_to_data(episode(odd), 1.0)


def test_each_datum_is_known_by_its_group_and_member():
    split = episode(turn([1, 2], [3], 1.0), turn([8, 9], [4]))
    groups_P = [
        TrajectoryGroup([split, *group(0.0).trajectories_G], [0.0, 0.0], [{}, {}]),
        group(0.0, 1.0),
    ]
    data_D, metadata_D = assemble_training_data(groups_P, compute_advantages(groups_P))
    assert [(each["group_idx"], each["traj_idx"]) for each in metadata_D] == [
        *((0, 0), (0, 0), (0, 1)),
        *((1, 0), (1, 1)),
    ]
    assert [values(datum, "advantages")[-1] for datum in data_D] == [0.5, 0.5, -0.5, -0.5, 0.5]
    with pytest.raises(ValueError, match="zip"):
        assemble_training_data(groups_P, [torch.zeros(2)])


# --- advantages -------------------------------------------------------------------------------------------


def test_groups_centre_on_their_own_mean_whatever_their_size():
    advantages_P = compute_advantages([group(1.0, 0.0, 2.0), group(5.0), group(0.0, 1.0)])
    assert [each.tolist() for each in advantages_P] == [[0.0, -1.0, 1.0], [0.0], [-0.5, 0.5]]
    assert {each.dtype for each in advantages_P} == {torch.float32}


def test_the_reward_of_the_group_counts_and_estimators_see_the_length():
    graded = group(0.0, 0.0, lengths=[1, 3])
    graded.final_rewards_G = [1.0, 0.0]
    assert compute_advantages([graded])[0].tolist() == [0.5, -0.5]
    assert compute_advantages([graded], "length_normalised")[0].tolist() == pytest.approx([1.0, -1 / 3])
    assert compute_advantages([graded], "rloo")[0].tolist() == [1.0, -1.0]
    with pytest.raises(ConfigurationError):
        compute_advantages([graded], "none")


def test_constant_groups_are_removed_and_the_first_kept_if_all_are(caplog):
    same, mixed, other = group(1.0, 1.0), group(0.0, 1.0), group(0.0, 0.0)
    assert remove_constant_reward_groups([same, mixed, other]) == [mixed]
    assert not caplog.records
    assert remove_constant_reward_groups([same, other]) == [same]
    assert "constant" in caplog.text
    assert remove_constant_reward_groups([]) == []
