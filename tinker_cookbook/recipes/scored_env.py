"""Problems whose answers take time to score, and may be partly right."""

from abc import abstractmethod

import tinker

from tinker_cookbook.renderers.messages import get_text_content
from tinker_cookbook.rl.problem_env import ProblemEnv
from tinker_cookbook.rl.types import Action, ActionExtra, Metrics, StepResult


class ScoredProblemEnv(ProblemEnv):
    """As a ProblemEnv, but other episodes go on while an answer is scored. The reward has the score in it."""

    partly_right = False  # whether there are scores between 0 and 1; they are then a metric of their own

    @abstractmethod
    async def score(self, sample_str: str) -> float:
        """From 0 to 1."""

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        message, termination = self.renderer.parse_response(action)
        answer = get_text_content(message)
        strict = self.require_stop_sequence_for_format
        well_formed = termination.is_stop_sequence if strict else termination.is_clean
        score = await self.score(answer)
        metrics: Metrics = {
            "format": float(well_formed and self.check_format(answer)),
            "correct": float(score >= 1),
        }
        if self.partly_right:
            metrics["score"] = score
        reward = self.format_coef * (metrics["format"] - 1) + score
        self._report(message, reward, metrics)
        return StepResult(reward, True, tinker.ModelInput.empty(), self.stop_condition, metrics)
