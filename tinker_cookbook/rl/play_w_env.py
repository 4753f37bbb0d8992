"""Play as the policy: read what the model reads, type what it would write, and see the reward.

python -m tinker_cookbook.rl.play_w_env env=guess_number
python -m tinker_cookbook.rl.play_w_env env=tinker_cookbook.recipes.custom_env.env:MyDatasetBuilder index=3
"""

import asyncio
import sys
from collections.abc import Iterator

import chz
import tinker
from chz.blueprint import exit_on_entrypoint_error

from tinker_cookbook import model_info
from tinker_cookbook.command_line import run_command
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.launch import TINY_MODEL
from tinker_cookbook.renderers.encoding import common_length
from tinker_cookbook.rl.env_names import dataset_builder_by_name
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Env, EnvGroupBuilder, Trajectory
from tinker_cookbook.tokenizer_utils import Tokenizer, get_tokenizer


async def get_async_input(prompt: str, multiline: bool = False) -> str:
    """What a person types: one line, or lines up to two empty ones or the end of the input."""
    return await asyncio.to_thread(_read, prompt, multiline)


def _read(prompt: str, multiline: bool) -> str:
    if not multiline:
        return input(prompt)
    print(prompt, end="", flush=True)
    lines = [input()]  # an input that is at its end is no answer, and an error
    for line in _lines():
        lines.append(line)
        if not line and not lines[-2]:
            break
    return "\n".join(lines).rstrip("\n")


def _lines() -> Iterator[str]:
    try:
        while True:
            yield input()
    except EOFError:
        return


class ManualPolicy(TokenCompleter):
    """A person. The token that ends a message need not be typed; tags such as <think> are the model's tokens."""

    def __init__(self, tokenizer: Tokenizer, multiline: bool = True, show_observation: bool = True):
        self.tokenizer = tokenizer
        self.multiline = multiline
        self.show_observation = show_observation
        self._shown: list[int] = []

    async def __call__(
        self, ob: tinker.ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs:
        if self.show_observation:
            self._show(ob)
        how = "two empty lines end it" if self.multiline else "one line"
        typed = await get_async_input(f"\n[your answer; {how}]\n", multiline=self.multiline)
        tokens = self._encode(typed)
        if not _has_stop(typed, tokens, stop):
            tokens += [stop[0]] if isinstance(stop[0], int) else self._encode(stop[0])
        if max_tokens is not None and len(tokens) > max_tokens:
            return TokensWithLogprobs(tokens[:max_tokens], None, "length")
        return TokensWithLogprobs(tokens, None, "stop")

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _show(self, ob: tinker.ModelInput) -> None:
        """Only what is new, if the conversation goes on from what was seen."""
        tokens = [token for chunk in ob.chunks for token in getattr(chunk, "tokens", ())]
        seen = common_length(tokens, self._shown)
        new = tokens[seen:] if seen == len(self._shown) else tokens
        images = sum(not isinstance(chunk, tinker.EncodedTextChunk) for chunk in ob.chunks)
        print(f"\n[observation of {ob.length} tokens{f', {images} images' if images else ''}]")
        print(self.tokenizer.decode(new))
        self._shown = tokens


def _has_stop(typed: str, tokens: list[int], stop: StopCondition) -> bool:
    if not stop:
        return True
    return any(each in tokens if isinstance(each, int) else each in typed for each in stop)


def print_trajectory_summary(trajectory: Trajectory) -> None:
    """Rewards and metrics of an episode, a line for each turn."""
    for number, transition in enumerate(trajectory.transitions, 1):
        notes = [f"{name}={value}" for name, value in {**transition.metrics, **transition.logs}.items()]
        print(f"turn {number}: reward {transition.reward:g}" + "".join(f", {note}" for note in notes))
    total = sum(transition.reward for transition in trajectory.transitions)
    why = f", stopped: {trajectory.stop_reason}" if trajectory.stop_reason else ""
    print(f"total reward {total:g} in {len(trajectory.transitions)} turns{why}")


async def play_env(
    env: Env, tokenizer: Tokenizer, multiline: bool = True, show_observation: bool = True
) -> Trajectory:
    """One episode in which you are the policy, at the terminal."""
    policy = ManualPolicy(tokenizer, multiline=multiline, show_observation=show_observation)
    trajectory = await do_single_rollout(policy, env)
    print_trajectory_summary(trajectory)
    return trajectory


# --- the command ------------------------------------------------------------------------------------------


@chz.chz
class PlayConfig:
    env: str = chz.field(default="guess_number", doc="Name of a task, or module:Builder of your own")
    index: int = chz.field(default=0, doc="Which problem")
    seed: int = chz.field(default=0, doc="Of the problems")
    model_name: str = chz.field(default=TINY_MODEL, doc="Whose tokens you see and type")
    renderer_name: str | None = chz.field(default=None, doc="None: as the model was taught")
    multiline: bool = chz.field(
        default=False, doc="Answers of several lines; two empty ones end an answer then"
    )


@exit_on_entrypoint_error  # of the command line: what is wrong with it, in place of a traceback
def _config_from_argv() -> PlayConfig:
    return chz.Blueprint(PlayConfig).make_from_argv(sys.argv[1:])


async def main() -> None:
    """The command: makes an environment by name and lets you play it."""
    config = _config_from_argv()
    group = await _group(config)
    try:
        env, *_ = await group.make_envs()
        tokenizer = get_tokenizer(config.model_name)
        trajectory = await play_env(env, tokenizer, multiline=config.multiline)
        ((reward, metrics),) = await group.compute_group_rewards([trajectory], [env])
    except EOFError as error:
        raise ConfigurationError(
            "the input ended before the episode did; play in a terminal, or pipe in every answer"
        ) from error
    finally:
        await group.cleanup()
    if reward or metrics:
        print(f"reward of the group {reward:g} {metrics}")


async def _group(config: PlayConfig) -> EnvGroupBuilder:
    renderer_name = config.renderer_name or model_info.get_recommended_renderer_name(config.model_name)
    settings = {
        "model_name_for_tokenizer": config.model_name,
        "renderer_name": renderer_name,
        "batch_size": 1,
        "group_size": 1,
        "n_batches": config.index + 1,
        "seed": config.seed,
    }
    dataset, _ = await dataset_builder_by_name(config.env, settings)()
    try:
        return dataset.get_batch(config.index)[0]
    except IndexError as error:
        raise ConfigurationError(
            f"index={config.index}: {config.env} has {len(dataset)} batches, from 0 on"
        ) from error


if __name__ == "__main__":
    sys.exit(run_command(lambda: asyncio.run(main())))
