"""The stages as runs of the trainers that there are."""

from typing import Any

from tinker_cookbook.model_info import get_recommended_renderer_name
from tinker_cookbook.preference.judge_evaluator import JudgeEvaluatorBuilder
from tinker_cookbook.preference.preference_datasets import (
    ChatDatasetBuilderFromComparisons,
    ComparisonDatasetBuilder,
)
from tinker_cookbook.preference.types import (
    PreferenceModelBuilder,
    PreferenceModelBuilderFromChatRenderer,
    PreferenceModelBuilderFromVerdictLogprob,
)
from tinker_cookbook.recipes.chat_sl import train as chat_sl
from tinker_cookbook.recipes.preference.manners import MannersConversationBuilder, MannersRuleBuilder
from tinker_cookbook.recipes.preference.rlhf.settings import CLIConfig, Stage
from tinker_cookbook.recipes.preference.rlhf.win_rate import WinRateEvaluatorBuilder
from tinker_cookbook.recipes.preference.sources import TINY, comparison_builder
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.rl.preference_envs import PairwisePreferenceRLDatasetBuilder
from tinker_cookbook.supervised import train as supervised_train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilder, ChatDatasetBuilderCommonConfig


def sft_config(cli: CLIConfig) -> supervised_train.Config:
    return supervised_train.Config(
        **_common(cli, "sft"),
        dataset_builder=_conversations(cli),
        learning_rate=cli.sft_learning_rate,
        max_steps=cli.sft_max_steps,
    )


def rm_config(cli: CLIConfig) -> supervised_train.Config:
    comparisons = _comparisons(cli)
    accuracy = JudgeEvaluatorBuilder(
        comparison_builder=comparisons,
        model_name=cli.base_model,
        renderer_name=renderer_name(cli),
        verdict=cli.verdict,
        max_comparisons=cli.eval_size,
    )
    return supervised_train.Config(
        **_common(cli, "rm"),
        dataset_builder=ChatDatasetBuilderFromComparisons(
            common_config=_chat_config(cli), comparison_builder=comparisons
        ),
        learning_rate=cli.rm_learning_rate,
        max_steps=cli.rm_max_steps,
        evaluator_builders=[accuracy] if cli.eval_every else [],
    )


def rl_config(cli: CLIConfig, sft_path: str, rm_path: str) -> rl_train.Config:
    judge = judge_builder(cli, rm_path)
    comparisons = _comparisons(cli)
    judges: dict[str, PreferenceModelBuilder] = {"judge": judge}
    if cli.comparisons == TINY:
        judges["rule"] = MannersRuleBuilder()
    win_rate = WinRateEvaluatorBuilder(
        baseline_path=sft_path,
        judges=judges,
        comparison_builder=comparisons,
        model_name=cli.base_model,
        renderer_name=renderer_name(cli),
        max_prompts=cli.eval_size,
        max_tokens=cli.rl_max_tokens,
        seed=cli.seed,
        base_url=cli.base_url,
    )
    return rl_train.Config(
        **_common(cli, "rl"),
        load_checkpoint_path=sft_path,
        dataset_builder=PairwisePreferenceRLDatasetBuilder(
            comparison_builder=comparisons,
            batch_size=cli.rl_batch_size,
            group_size=cli.rl_group_size,
            policy_renderer_name=renderer_name(cli),
            policy_model_name=cli.base_model,
            preference_model_builder=judge,
        ),
        max_tokens=cli.rl_max_tokens,
        max_steps=cli.rl_max_steps,
        learning_rate=cli.rl_learning_rate,
        lr_schedule="linear",
        advantage="group_mean",  # where all answers are alike, what the judge says of them is noise
        loss_fn="ppo",
        num_substeps=cli.rl_substeps,
        remove_constant_reward_groups=True,
        evaluator_builders=[win_rate] if cli.eval_every else [],
    )


def judge_builder(cli: CLIConfig, rm_path: str) -> PreferenceModelBuilder:
    fields = {
        "renderer_name": renderer_name(cli),
        "model_name": cli.base_model,
        "rm_weights_path": rm_path,
        "base_url": cli.base_url,
    }
    if cli.verdict == "says":
        return PreferenceModelBuilderFromChatRenderer(**fields)
    # Tournament and win rate ask in both orders by themselves.
    return PreferenceModelBuilderFromVerdictLogprob(**fields, both_ways=False)


def renderer_name(cli: CLIConfig) -> str:
    return cli.renderer_name or get_recommended_renderer_name(cli.base_model)


def _common(cli: CLIConfig, stage: Stage) -> dict[str, Any]:
    return {
        "log_path": cli.folder(stage),
        "model_name": cli.base_model,
        "recipe_name": f"rlhf_{stage}",
        "renderer_name": renderer_name(cli),
        "lora_rank": cli.lora_rank,
        "seed": cli.seed,
        "base_url": cli.base_url,
        "eval_every": cli.eval_every,
        "save_every": cli.save_every,
        "wandb_project": cli.wandb_project,
        "wandb_name": f"{cli.wandb_name or cli.name}-{stage}",
    }


def _chat_config(cli: CLIConfig) -> ChatDatasetBuilderCommonConfig:
    return ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=cli.base_model,
        renderer_name=renderer_name(cli),
        max_length=cli.max_length,
        batch_size=cli.batch_size,
    )


def _conversations(cli: CLIConfig) -> ChatDatasetBuilder:
    common = _chat_config(cli)
    if cli.sft_dataset == TINY:
        return MannersConversationBuilder(common_config=common, seed=cli.seed)
    if cli.sft_dataset in chat_sl.NAMED:
        return chat_sl.NAMED[cli.sft_dataset](common_config=common)
    return FromConversationFileBuilder(common_config=common, file_path=cli.sft_dataset)


def _comparisons(cli: CLIConfig) -> ComparisonDatasetBuilder:
    return comparison_builder(cli.comparisons, test_size=cli.test_size, seed=cli.seed)
