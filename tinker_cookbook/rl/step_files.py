"""What is written about the episodes of a step: a summary of each, a page with transcripts, and curves in the end."""

import tinker

from tinker_cookbook.rl.batch import Batch, Minibatch
from tinker_cookbook.rl.config import Config
from tinker_cookbook.rl.group_source import GroupId
from tinker_cookbook.rl.report import ReportGroup, log_groups
from tinker_cookbook.rl.rollout_logging import RolloutSummaryGroup, serialize_rollout_summaries_from_groups
from tinker_cookbook.tokenizer_utils import Tokenizer
from tinker_cookbook.training_run import TrainingRun
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.curves import save_curve_png
from tinker_cookbook.utils.logtree.transfer import graft, take_branch
from tinker_cookbook.utils.misc_utils import local_folder, safezip

REWARD = "env/all/reward/total"
CURVES = (REWARD, f"test/{REWARD}", "optim/entropy", "optim/kl_sample_train_v2")


def write_step_files(config: Config, run: TrainingRun, step: int, batch: Batch, tokenizer: Tokenizer) -> None:
    if config.rollout_json_export:
        groups_P = [
            RolloutSummaryGroup(rolled.group, rolled.builder.logging_tags(), rolled.sampling_client_step)
            for rolled in batch.whole_groups
        ]
        rows = serialize_rollout_summaries_from_groups(split="train", iteration=step, groups_P=groups_P)
        run.store.write_rollouts(step, rows)
    if config.num_groups_to_log:
        with logtree.init_trace(f"RL iteration {step}") as page:
            _log_groups(batch, config.num_groups_to_log, tokenizer)
        run.write_report(page, "train", step)


def _log_groups(batch: Batch, most: int, tokenizer: Tokenizer) -> None:
    """The first groups of the step, and what their environments and graders wrote."""
    data = {group_id: data_G for part in batch.minibatches for group_id, data_G in _by_member(part).items()}
    for rolled in batch.whole_groups[:most]:
        tags, sampler = rolled.builder.logging_tags(), rolled.sampling_client_step
        log_groups([ReportGroup(rolled.group, tags, data.get(rolled.id), sampler)], tokenizer)
        graft(take_branch(rolled.log))


def _by_member(minibatch: Minibatch) -> dict[GroupId, list[list[tinker.Datum]]]:
    data_PG: list[list[list[tinker.Datum]]] = [
        [[] for _ in rolled.group.trajectories_G] for rolled in minibatch.rolled_P
    ]
    for datum, where in safezip(minibatch.data_D, minibatch.metadata_D):
        data_PG[where["group_idx"]][where["traj_idx"]].append(datum)
    return {rolled.id: data_G for rolled, data_G in safezip(minibatch.rolled_P, data_PG)}


def draw_curves(config: Config, run: TrainingRun) -> None:
    """`reward.png`, where the run's files are on this machine."""
    folder = local_folder(config.log_path)
    if folder is not None:
        rows = run.store.read_metrics()
        keys = [
            key for key in CURVES if any(key in row for row in rows)
        ]  # without evaluations, one is missing
        save_curve_png(rows, folder / "reward.png", keys=keys or [REWARD], title=config.recipe_name)
