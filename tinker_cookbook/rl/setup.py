"""What a run of reinforcement learning needs before its first step."""

import math
from dataclasses import dataclass, replace
from typing import Any

import tinker

from tinker_cookbook.eval.evaluators import Evaluator
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.rl.batch import KLPenalty
from tinker_cookbook.rl.config import Config
from tinker_cookbook.rl.group_source import GroupSource
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator
from tinker_cookbook.rl.types import RLDataset


@dataclass(frozen=True)
class Plan:
    source: GroupSource
    groups_per_step: int | None  # None: a batch of the data set, whatever its size and whatever comes of it
    total_steps: (
        int  # a guess where the size of a step is fixed, of batches not read yet and groups of no use
    )
    max_steps: int | None  # where the size of a step is fixed; None: until the data ends

    def total_seen_from(self, step: int) -> int:
        """Steps of the run, as far as one can tell before this one. Never fewer than were planned at first."""
        if self.groups_per_step is None:
            return self.total_steps
        total = max(self.total_steps, step + _steps_for(self.source.groups_left, self.groups_per_step))
        return total if self.max_steps is None else min(total, self.max_steps)

    def groups_wanted(self, step: int) -> int | None:
        """To be trained on from this step on; None: all there are."""
        if self.groups_per_step is None or self.max_steps is None:
            return None
        return (self.max_steps - step) * self.groups_per_step


async def make_plan(config: Config, dataset: RLDataset, resume_state: dict[str, Any]) -> Plan:
    """Where groups come from, how many make a step, and how many steps there are."""
    if len(dataset) < 1:
        raise ConfigurationError(
            f"{type(dataset).__name__} has no batch: give it more data, or a smaller batch size"
        )
    if config.async_config is None:
        plan = _by_batch(config, dataset, resume_state)
    else:
        plan = await _by_size(config, config.async_config.groups_per_batch, dataset, resume_state)
    if int(resume_state.get("batch", 0)) < plan.total_steps <= config.warmup_steps:
        raise ConfigurationError(
            f"warmup_steps={config.warmup_steps} must be less than the {plan.total_steps} steps of the run: set fewer, "
            "raise max_steps, or add data"
        )
    return plan


def _by_batch(config: Config, dataset: RLDataset, resume_state: dict[str, Any]) -> Plan:
    if "cursor" in resume_state:
        raise ConfigurationError(
            f"{config.log_path} holds a run with async_config, whose checkpoint has groups under way: set async_config "
            "again, or start in another log_path with load_checkpoint_path"
        )
    total = len(dataset) if config.max_steps is None else min(config.max_steps, len(dataset))
    source = GroupSource(dataset, total, first_batch=int(resume_state.get("batch", 0)))
    return Plan(source, None, total, max_steps=None)


async def _by_size(config: Config, size: int, dataset: RLDataset, resume_state: dict[str, Any]) -> Plan:
    """The number of steps is a guess: batches may differ in size, and groups of no use do not count."""
    done = int(resume_state.get("batch", 0))
    source = GroupSource(dataset, len(dataset), first_batch=done)
    if "cursor" in resume_state:
        await source.restore(resume_state)
    source.open_until(len(dataset))
    groups = len(dataset) * await source.size_of_batch(0)
    if not groups:
        raise ConfigurationError(f"the first batch of {type(dataset).__name__} has no groups")
    if source.exhausted:
        return Plan(source, size, done, max_steps=done)
    guess = Plan(source, size, _steps_for(groups, size), config.max_steps)
    return replace(guess, total_steps=guess.total_seen_from(done))


def _steps_for(groups: float, size: int) -> int:
    return math.ceil(groups / size)


async def context_window(config: Config, service_client: tinker.ServiceClient) -> int | None:
    """What the server says of the model, unless the config knows better."""
    if config.context_window is not None:
        return config.context_window
    capabilities = await service_client.get_server_capabilities_async()
    windows = {each.model_name: each.max_context_length for each in capabilities.supported_models}
    return windows.get(config.model_name)


async def kl_penalty(config: Config, service_client: tinker.ServiceClient) -> KLPenalty | None:
    reference = config.kl_reference_config
    if config.kl_penalty_coef <= 0 or reference is None:
        return None
    if reference.load_checkpoint_path is None:
        client = await service_client.create_sampling_client_async(base_model=reference.base_model)
    else:
        client = await service_client.create_sampling_client_async(model_path=reference.load_checkpoint_path)
    return KLPenalty(client, config.kl_penalty_coef, config.kl_discount_factor)


def make_evaluators(
    config: Config, test_dataset: RLDataset | None, window: int | None
) -> list[tuple[int, list[Evaluator]]]:
    """Those of the config, and the test set under the conditions of training."""
    evaluators: list[Evaluator] = [build() for build in config.evaluator_builders]
    if test_dataset is not None:
        temperature = config.temperature if config.eval_temperature is None else config.eval_temperature
        evaluators.append(
            RLTestSetEvaluator(
                test_dataset,
                config.max_tokens,
                num_groups_to_log=config.num_groups_to_log,
                strategy=config.effective_rollout_strategy(),
                temperature=temperature,
                termination=config.effective_termination(),
                context_window=window,
                seed=config.seed,
                group_timeout_seconds=config.group_timeout_seconds,
            )
        )
    return [(config.eval_every, evaluators)]
