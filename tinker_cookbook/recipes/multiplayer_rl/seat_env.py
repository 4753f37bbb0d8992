"""A seat in a game as the environment that is trained in.

What a player read and wrote is a trajectory of its own: its replies are the actions, and all that comes from the game
or from other players is observed, as messages of the roles that the renderer knows. The next prompt goes on from the
very tokens that were sampled.
"""

from dataclasses import dataclass

import tinker

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.recipes.multiplayer_rl.coordinator import Coordinator
from tinker_cookbook.recipes.multiplayer_rl.game import Ending, EndKind, IllegalMoveError
from tinker_cookbook.recipes.multiplayer_rl.players import read_reply
from tinker_cookbook.renderers import Message, Renderer
from tinker_cookbook.renderers.messages import get_text_content
from tinker_cookbook.rl.task_env import extended
from tinker_cookbook.rl.types import (
    STOP_METRIC_PREFIX,
    Action,
    ActionExtra,
    Env,
    InitialObservationOverflow,
    Logs,
    Metrics,
    StepResult,
)


@dataclass(frozen=True)
class Rewards:
    """What the end of a game is worth to a player."""

    illegal_move: float = -2.0  # of the player who made it
    draw: float = 0.0  # between a win, which is 1, and a loss, which is -1

    def of(self, seat: int, ending: Ending) -> float:
        """A mistake of another player earns nothing."""
        if ending.kind == EndKind.ILLEGAL_MOVE:
            return self.illegal_move if ending.offender == seat else 0.0
        return self.draw if ending.drawn(seat) else ending.scores[seat]


class SeatEnv(Env):
    def __init__(
        self, renderer: Renderer, coordinator: Coordinator, seat: int, rewards: Rewards | None = None
    ):
        self.renderer = renderer
        self.coordinator = coordinator
        self.seat = seat
        self.rewards = rewards or Rewards()
        self._stop: StopCondition = renderer.get_stop_sequences()
        self._conversation: list[Message] = []
        self._prompt = tinker.ModelInput.empty()  # what the next action is an answer to
        self._action: Action = []  # the last one, if the conversation goes on from it

    async def initial_observation(
        self,
    ) -> tuple[tinker.ModelInput, StopCondition] | InitialObservationOverflow:
        self.coordinator.join(self.seat)
        if await self.coordinator.turn(self.seat):
            return self._observe(), self._stop
        # Another player ended the game before the first turn of this one: an episode without a word.
        ending = self._ending()
        return InitialObservationOverflow(
            self.rewards.of(self.seat, ending), self._metrics(ending), self._logs(ending)
        )

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        self._move(action, extra)
        if await self.coordinator.turn(self.seat):
            return StepResult(0.0, False, self._observe(), self._stop, {"legal": 1.0})
        ending = self._ending()
        is_legal = ending.kind != EndKind.ILLEGAL_MOVE or ending.offender != self.seat
        return StepResult(
            reward=self.rewards.of(self.seat, ending),
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=self._stop,
            metrics={"legal": float(is_legal), **self._metrics(ending)},
            logs=self._logs(ending),
        )

    async def cleanup(self) -> None:
        """Nobody plays this seat any more."""
        self.coordinator.leave(self.seat, "its environment was closed")

    def _move(self, action: Action, extra: ActionExtra | None) -> None:
        try:
            message = read_reply(self.renderer, action, (extra or {}).get("stop_reason"))
        except IllegalMoveError as error:
            self.coordinator.forfeit(self.seat, str(error))
            return
        self._conversation.append(message)
        self._action = action
        self.coordinator.move(self.seat, get_text_content(message))

    def _observe(self) -> tinker.ModelInput:
        game = self.coordinator.game
        if game.forgets(self.seat):
            self._conversation, self._action = [], []
        self._conversation += game.news(self.seat)
        rendered = self.renderer.build_generation_prompt(self._conversation)
        end = self._stop[0]
        if self._action and self.renderer.has_extension_property and isinstance(end, int):
            rendered = extended(self._prompt, self._action, rendered, end=end)
        self._prompt = rendered
        return rendered

    # --- the end

    def _ending(self) -> Ending:
        ending = self.coordinator.ending
        assert ending is not None, "a player has no turn any more only when the game is over"
        return ending

    def _metrics(self, ending: Ending) -> Metrics:
        figures: Metrics = {"win": float(ending.won(self.seat))}
        if self.coordinator.game.num_players > 1:
            figures |= {"draw": float(ending.drawn(self.seat)), "loss": float(ending.lost(self.seat))}
            figures |= {f"seat{self.seat}/{name}": value for name, value in figures.items()}
        return {**figures, f"{STOP_METRIC_PREFIX}{self._stop_word(ending)}": 1.0}

    def _stop_word(self, ending: Ending) -> str:
        if ending.offender in (None, self.seat):
            return ending.kind.value
        return f"other_{ending.kind.value}"

    def _logs(self, ending: Ending) -> Logs:
        moves = "  ".join(f"{seat}: {text}" for seat, text in self.coordinator.moves)
        return {"game": self.coordinator.game.name, "ended": ending.reason, "seat": self.seat, "moves": moves}
