"""What happened in the rollouts of an iteration, for people: a page with transcripts, and some of them in the log."""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinker

from tinker_cookbook.display import format_trajectory
from tinker_cookbook.rl.transcript import (
    Transcript,
    Turn,
    largest_advantage,
    mean_advantage,
    observation_tokens,
    transcript_of,
)
from tinker_cookbook.rl.types import STOP_METRIC_PREFIX, Metrics, Trajectory, TrajectoryGroup
from tinker_cookbook.tokenizer_utils import Tokenizer
from tinker_cookbook.utils import logtree
from tinker_cookbook.utils.format_colorized import CONTROL_PICTURES, whole_characters
from tinker_cookbook.utils.logtree.tree import current_position
from tinker_cookbook.utils.logtree_formatters import TokensFormatter
from tinker_cookbook.utils.logtree_text import FactsFormatter, TextFormatter

logger = logging.getLogger(__name__)

MAX_MEMBERS = 8  # of a group, whose transcripts are shown
MAX_PRINTED = 4
MAX_TURNS = 16  # of a transcript
MAX_ACTION = 1500  # pieces of text of an action, of about a token each
MAX_TEXT = 6000  # characters of an observation or a log


@dataclass(frozen=True)
class ReportGroup:
    trajectory_group: TrajectoryGroup
    tags: list[str]
    data_G: list[list[tinker.Datum]] | None = (
        None  # what each member was trained on; None if the group was not
    )
    sampling_client_step: int | None = None  # updates behind the weights that sampled it


@dataclass(frozen=True)
class _Member:
    index: int
    trajectory: Trajectory
    reward: float
    final_reward: float
    metrics: Metrics
    data_D: list[tinker.Datum]
    advantage: float | None  # None if it was not trained on
    place: str  # "best" or "worst" of its group, if it is one of them

    @property
    def tokens(self) -> int:
        return sum(len(transition.ac.tokens) for transition in self.trajectory.transitions)

    @property
    def title(self) -> str:
        name = f"Member {self.index}, the {self.place}" if self.place else f"Member {self.index}"
        advantage = [] if self.advantage is None else [f"advantage {self.advantage:+.3g}"]
        stopped = [] if self.trajectory.stop_reason is None else [self.trajectory.stop_reason]
        return " · ".join(
            [f"{name}: reward {self.reward:.4g}", *advantage, f"{self.tokens:,} tokens", *stopped]
        )


def log_groups(groups_P: Sequence[ReportGroup], tokenizer: Tokenizer) -> None:
    """A section for each group, in the report that is being written; nothing without one."""
    if current_position() is None:
        return
    for index, group in enumerate(groups_P):
        with logtree.scope_header(_group_title(index, group)):
            _log_group(group, tokenizer)


def print_group(traj_group: TrajectoryGroup, tokenizer: Tokenizer) -> None:
    """A few of its trajectories in the log, from the best to the worst."""
    rewards_G = traj_group.get_total_rewards()
    order = _by_reward(rewards_G)
    for index in _evenly(order, MAX_PRINTED):
        logger.info(
            "trajectory %d of a group of %d, reward %.4g, metrics %s\n%s",
            index,
            len(order),
            rewards_G[index],
            traj_group.metrics_G[index],
            format_trajectory(traj_group.trajectories_G[index], tokenizer).translate(CONTROL_PICTURES),
        )


# --- a group ----------------------------------------------------------------------------------------------


def _group_title(index: int, group: ReportGroup) -> str:
    rewards_G = group.trajectory_group.get_total_rewards()
    mean = f"mean reward {sum(rewards_G) / len(rewards_G):.4g} of {len(rewards_G)}" if rewards_G else "empty"
    tags = f" ({', '.join(group.tags)})" if group.tags else ""
    return f"Group {index}{tags}: {mean}"


def _log_group(group: ReportGroup, tokenizer: Tokenizer) -> None:
    members = _members(group)
    for note in _group_notes(group):
        logtree.log_text(note)
    if not members:
        return
    logtree.table([_member_row(member) for member in members])
    prompt = _shared_prompt(group.trajectory_group, tokenizer)
    if prompt is not None:
        _log_observation("Prompt", prompt, tokenizer)
    limit = largest_advantage(group.data_G or ())
    shown = _best_and_worst_first(members)[:MAX_MEMBERS]
    for place, member in enumerate(shown):
        open_scope = logtree.scope_header if place < 2 else logtree.scope_details
        with open_scope(member.title):
            _log_member(member, tokenizer, limit, prompt_is_known=prompt is not None)
    if len(members) > len(shown):
        logtree.log_text(
            f"{len(members) - len(shown)} more members, with rewards between these, are in the table alone."
        )


def _members(group: ReportGroup) -> list[_Member]:
    """From the best to the worst."""
    whole = group.trajectory_group
    rewards_G = whole.get_total_rewards()
    order = _by_reward(rewards_G)
    places = {order[0]: "best", order[-1]: "worst"} if len(set(rewards_G)) > 1 else {}
    data_G = group.data_G or [[] for _ in rewards_G]
    return [
        _Member(
            index,
            whole.trajectories_G[index],
            rewards_G[index],
            whole.final_rewards_G[index],
            whole.metrics_G[index],
            data_G[index],
            mean_advantage(data_G[index]),
            places.get(index, ""),
        )
        for index in order
    ]


def _group_notes(group: ReportGroup) -> list[str]:
    whole = group.trajectory_group
    notes = []
    if group.sampling_client_step is not None:
        notes.append(f"Sampled after {group.sampling_client_step} updates.")
    if group.data_G is None and whole.trajectories_G:
        same = len(set(whole.get_total_rewards())) == 1
        why = "all rewards are the same, so that no member has an advantage" if same else "not trained on"
        notes.append(f"Tokens are not coloured: {why}.")
    if whole.rollout_errors:
        kinds = Counter(error.error_type for error in whole.rollout_errors)
        counts = ", ".join(f"{kind} × {count}" for kind, count in kinds.most_common())
        first = _cut(whole.rollout_errors[0].error_message, MAX_TEXT)
        notes.append(f"Failed rollouts: {counts}. The first: {first}")
    return notes


def _member_row(member: _Member) -> dict[str, Any]:
    return {
        "member": member.index,
        "reward": member.reward,
        "advantage": "" if member.advantage is None else member.advantage,
        "tokens": member.tokens,
        "turns": len(member.trajectory.transitions),
        "stopped": member.trajectory.stop_reason or "",
        **_metrics(member),
    }


def _metrics(member: _Member) -> dict[str, float]:
    """Each over the turns that have it, and those of the whole episode."""
    values: dict[str, list[float]] = {}
    for metrics in [*(transition.metrics for transition in member.trajectory.transitions), member.metrics]:
        for name, value in metrics.items():
            if not name.startswith(STOP_METRIC_PREFIX):  # has a column of its own
                values.setdefault(name, []).append(value)
    return {name: sum(some) / len(some) for name, some in values.items()}


def _shared_prompt(group: TrajectoryGroup, tokenizer: Tokenizer) -> list[int] | None:
    """The first observation, if it is that of all."""
    first = [
        observation_tokens(trajectory.transitions[0].ob, tokenizer)
        for trajectory in group.trajectories_G
        if trajectory.transitions
    ]
    return first[0] if first and all(tokens == first[0] for tokens in first) else None


def _by_reward(rewards_G: Sequence[float]) -> list[int]:
    """Best first; what is not a number last, as nothing can be better than it."""
    return sorted(range(len(rewards_G)), key=lambda index: (math.isnan(rewards_G[index]), -rewards_G[index]))


def _best_and_worst_first(members: list[_Member]) -> list[_Member]:
    """The best, the worst, the second best, the second worst, ..."""
    return [members[-1 - k // 2] if k % 2 else members[k // 2] for k in range(len(members))]


def _evenly(order: list[int], count: int) -> list[int]:
    if len(order) <= count:
        return order
    return [order[round(k * (len(order) - 1) / (count - 1))] for k in range(count)]


# --- a member ---------------------------------------------------------------------------------------------


def _log_member(member: _Member, tokenizer: Tokenizer, limit: float | None, prompt_is_known: bool) -> None:
    transcript = transcript_of(member.trajectory, member.data_D, tokenizer)
    if not transcript.turns:
        logtree.log_text("No turn was taken.")
    shown = _without_middle(transcript.turns, MAX_TURNS)
    for index, turn in enumerate(transcript.turns):
        if index in shown:
            _log_turn(_turn_name(index, transcript), turn, tokenizer, limit, index == 0 and prompt_is_known)
        elif index - 1 in shown:
            logtree.log_text(f"… {len(transcript.turns) - len(shown)} turns left out …")
    if transcript.ending:
        name = _observation_name(transcript.ending_goes_on, "in the end")
        _log_observation(name, transcript.ending, tokenizer)
    outcome = {"reward from the group": member.final_reward} if member.final_reward else {}
    if outcome or member.metrics:
        logtree.log_formatter(FactsFormatter(outcome | member.metrics))


def _turn_name(index: int, transcript: Transcript) -> str:
    return "Answer" if len(transcript.turns) == 1 else f"Turn {index + 1}"


def _observation_name(goes_on: bool, where: str) -> str:
    return f"Observation {where}" if goes_on else f"Observation {where}, from its beginning"


def _log_turn(
    name: str, turn: Turn, tokenizer: Tokenizer, limit: float | None, observation_is_known: bool
) -> None:
    if not observation_is_known:
        _log_observation(
            _observation_name(turn.goes_on, f"before {name.lower()}"), turn.observation, tokenizer
        )
    tokens = turn.transition.ac.tokens
    caption = f"{name}, {len(tokens):,} tokens"
    if turn.transition.ac.stop_reason == "length":
        caption += ", cut off"
    if turn.advantages is None:
        logtree.log_formatter(TextFormatter(_cut(tokenizer.decode(list(tokens)), MAX_TEXT), caption))
    else:
        logtree.log_formatter(_coloured(caption, turn, turn.advantages, tokenizer, limit))
    logs = {
        key: _cut(value, MAX_TEXT) if isinstance(value, str) else value
        for key, value in turn.transition.logs.items()
    }
    logtree.log_formatter(
        FactsFormatter({"reward": turn.transition.reward, **turn.transition.metrics, **logs})
    )


def _log_observation(caption: str, tokens: list[int], tokenizer: Tokenizer) -> None:
    text = _cut(tokenizer.decode(tokens).strip("\n"), MAX_TEXT)
    logtree.log_formatter(TextFormatter(text, f"{caption}, {len(tokens):,} tokens", quiet=True))


def _coloured(
    caption: str, turn: Turn, advantages: list[float | None], tokenizer: Tokenizer, limit: float | None
) -> TokensFormatter:
    """A character of several tokens has the colour of the last, which completes it."""
    tokens, logprobs = list(turn.transition.ac.tokens), turn.transition.ac.maybe_logprobs
    pieces = whole_characters(tokens, tokenizer)
    shown = _without_middle(pieces, MAX_ACTION)
    texts: list[str] = []
    values: list[float | None] = []
    tips: list[str] = []
    for index, (start, end, text) in enumerate(pieces):
        if index in shown:
            texts.append(text)
            values.append(advantages[end - 1])
            tips.append(
                "\n".join([repr(text), *(_tip(k, tokens, advantages, logprobs) for k in range(start, end))])
            )
        elif index - 1 in shown:
            texts.append(f"\n… {len(pieces) - len(shown):,} tokens left out …\n")
            values.append(None)
            tips.append("left out of this page")
    return TokensFormatter(texts, values, caption, label="advantage", limit=limit, tips=tips)


def _tip(place: int, tokens: list[int], advantages: list[float | None], logprobs: list[float] | None) -> str:
    value = advantages[place]
    lines = [
        f"token {place}, id {tokens[place]}",
        "kept out of the loss" if value is None else f"advantage {value:.6g}",
    ]
    if logprobs is not None:
        lines.append(f"logprob {logprobs[place]:.4f}, probability {math.exp(min(logprobs[place], 0.0)):.3g}")
    return "\n".join(lines)


# --- cutting ----------------------------------------------------------------------------------------------


def _without_middle(items: Sequence[Any], limit: int) -> set[int]:
    """The indices to show: the first and the last, `limit` in all."""
    if len(items) <= limit:
        return set(range(len(items)))
    half = limit // 2
    return {*range(half), *range(len(items) - half, len(items))}


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters left out …\n{text[-half:]}"
