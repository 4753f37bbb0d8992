"""What a player saw and said becomes its own training data, token by token as it was sampled."""

import asyncio

import pytest

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.recipes.launch import TINY_MODEL
from tinker_cookbook.recipes.multiplayer_rl.groups import SelfPlayGroupBuilder, Table
from tinker_cookbook.recipes.multiplayer_rl.text_arena.tic_tac_toe import TicTacToeMaker
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.tasks.tictactoe import INTROS, Position
from tinker_cookbook.tokenizer_utils import get_tokenizer


class Spelling(TokenCompleter):
    """Plays the free cells from the first on, and spells moves as no tokenizer would: a token for each character."""

    def __init__(self, renderer):
        self.renderer = renderer

    async def __call__(self, model_input, stop, *, max_tokens=None) -> TokensWithLogprobs:
        text = self.renderer.tokenizer.decode(model_input.to_ints())
        cell = text.rpartition("Available Moves: '[")[2][0]
        tokens = [self._token(character) for character in f" [ {cell} ]"]
        return TokensWithLogprobs([*tokens, int(stop[0])], [-0.5] * (len(tokens) + 1))

    def _token(self, character: str) -> int:
        (token,) = self.renderer.tokenizer.encode(character)
        return token


@pytest.fixture(scope="module")
def renderer():
    return get_renderer("chatml", get_tokenizer(TINY_MODEL), model_name=TINY_MODEL)


def played(renderer, *, with_history: bool):
    table = Table(TicTacToeMaker(with_history, list_moves=True), renderer)
    builder = SelfPlayGroupBuilder(table, num_games=1, seed=0)
    return asyncio.run(do_group_rollout(builder, Spelling(renderer)))


def test_a_player_has_one_datum_of_all_its_turns(renderer):
    group = played(renderer, with_history=True)
    assert group.get_total_rewards() == [1.0, -1.0]  # 0 2 4 6 are O's
    for trajectory in group.trajectories_G:
        for turn, following in zip(trajectory.transitions, trajectory.transitions[1:], strict=False):
            so_far = [*turn.ob.to_ints(), *turn.ac.tokens]
            assert following.ob.to_ints()[: len(so_far)] == so_far, "the prompt goes on from what was sampled"
        (datum,) = trajectory_to_data(trajectory, 1.0)
        mask = datum.loss_fn_inputs["mask"].data
        assert sum(mask) == sum(len(turn.ac.tokens) for turn in trajectory.transitions)
        targets = datum.loss_fn_inputs["target_tokens"].data
        trained_on = renderer.tokenizer.decode(
            [int(token) for token, kept in zip(targets, mask, strict=True) if kept]
        )
        moves = [f" [ {cell} ]<|im_end|>" for cell in _cells(trajectory)]
        assert trained_on == "".join(moves), "its own moves and nothing else"


def _cells(trajectory) -> list[int]:
    seat = trajectory.transitions[-1].logs["seat"]
    return [2 * turn + int(seat) for turn in range(len(trajectory.transitions))]


def test_what_the_other_player_does_is_observed(renderer):
    group = played(renderer, with_history=True)
    second = group.trajectories_G[1]
    read = renderer.tokenizer.decode(second.transitions[1].ob.to_ints())
    expected = Position((0, 1, 2), INTROS[1], with_history=True).prompt
    assert read.replace(" [ 1 ]", "[1]") == renderer.tokenizer.decode(
        renderer.build_generation_prompt(expected).to_ints()
    )
    assert read.count("<|im_start|>assistant") == 2
    assert {part.split("\n")[0] for part in read.split("<|im_start|>")[1:]} == {"user", "assistant"}


def test_without_history_each_turn_is_a_datum(renderer):
    group = played(renderer, with_history=False)
    for trajectory in group.trajectories_G:
        assert len(trajectory_to_data(trajectory, 1.0)) == len(trajectory.transitions)
        prompts = [renderer.tokenizer.decode(turn.ob.to_ints()) for turn in trajectory.transitions]
        assert all(prompt.count("<|im_start|>") == 2 for prompt in prompts)
        assert all("You are" in prompt for prompt in prompts)
