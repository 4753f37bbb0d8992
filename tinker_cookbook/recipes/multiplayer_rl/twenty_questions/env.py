"""Twenty questions: one player asks and guesses, the other knows the thing and answers.

The answerer is another model, which reads the thing and the last question and nothing else, or the table of
`tinker_cookbook.tasks.twenty_questions` (as the opponent `optimal`).
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import chz

from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.recipes.multiplayer_rl.dataset import GamesDatasetBuilder
from tinker_cookbook.recipes.multiplayer_rl.game import Ending, Game, GameMaker, IllegalMoveError, finished
from tinker_cookbook.renderers import Message
from tinker_cookbook.tasks import Split
from tinker_cookbook.tasks.twenty_questions import (
    OPENINGS,
    PROPERTIES,
    SECRETS,
    THINGS,
    Asking,
    asked_property,
    parse_guess,
)

ASKER, ANSWERER = 0, 1
HOW_TO = " Ask one short question at a time, and when you know the thing, write 'Guess: ' and the one word."
UNANSWERED = "Please ask a yes or no question."
_YES_OR_NO = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)


class TwentyQuestions(Game):
    name = "twenty_questions"

    def __init__(self, asking: Asking, *, explain: bool = False):
        """`explain`: say how to ask and guess, to a model that was not taught this game."""
        self.asking = asking
        self.explain = explain
        self.questions: list[str] = []  # all that the asker wrote, guesses too
        self.answers: list[str] = []

    @property
    def to_move(self) -> int:
        return ANSWERER if len(self.questions) > len(self.answers) else ASKER

    def forgets(self, player: int) -> bool:
        return player == ANSWERER

    def news(self, player: int) -> list[Message]:
        if player == ANSWERER:
            secret = Message(role="system", content=SECRETS[0].format(thing=self.asking.thing))
            return [secret, Message(role="user", content=self.questions[-1])]
        if self.answers:
            return [Message(role="user", content=self.answers[-1])]
        return [Message(role="user", content=self.asking.opening + (HOW_TO if self.explain else ""))]

    def play(self, move: str) -> None:
        if self.to_move == ANSWERER:
            found = _YES_OR_NO.match(move)
            self.answers.append(f"{found[1].capitalize()}." if found else UNANSWERED)
            return
        if not move.strip():
            raise IllegalMoveError("an empty question")
        self.questions.append(move.strip())

    @property
    def ending(self) -> Ending | None:
        """Both want the thing to be found: it is one score for both."""
        guess = parse_guess(self.questions[-1]) if self.questions else None
        if guess is not None:
            right = guess == self.asking.thing.lower()
            return finished(f"guessed {guess}, it is {self.asking.thing}", [float(right)] * 2)
        if len(self.questions) == self.asking.max_turns:
            return finished(f"no guess in {len(self.questions)} turns, it is {self.asking.thing}", [0.0] * 2)
        return None

    def forfeited(self, offender: int) -> tuple[float, ...]:
        return tuple(-1.0 if player == offender else 0.0 for player in range(self.num_players))

    def legal_moves(self) -> Sequence[str]:
        if self.to_move == ANSWERER:
            return ["Yes.", "No."]
        return [text for texts in PROPERTIES.values() for text in texts]

    def best_moves(self) -> Sequence[str]:
        """Of the answerer the truth; of the asker a question that tells the things apart, or a guess."""
        if self.asking.thing not in THINGS:
            raise ConfigurationError(
                f"{self.asking.thing!r} is not in the table of things: its answerer has to be a model"
            )
        if self.to_move == ASKER:
            return [self.asking.right_reply(self.questions, random.Random(len(self.questions)))]
        name = asked_property(self.questions[-1])
        if name is None:
            return [UNANSWERED]
        return ["Yes." if name in THINGS[self.asking.thing] else "No."]


@dataclass(frozen=True)
class TwentyQuestionsMaker(GameMaker):
    things: tuple[str, ...]
    max_turns: int = 20
    explain: bool = False
    name: str = "twenty_questions"

    def __call__(self, seed: int) -> TwentyQuestions:
        rng = random.Random(seed)
        asking = Asking(rng.choice(self.things), rng.choice(OPENINGS), self.max_turns)
        return TwentyQuestions(asking, explain=self.explain)


@chz.chz
class TwentyQuestionsDatasetBuilder(GamesDatasetBuilder):
    """One thing in five, 100 at most, is never trained on."""

    opponents: tuple[str, ...] = chz.field(
        default=("optimal",), doc="Who answers: optimal, base_model, a checkpoint"
    )
    test_opponents: tuple[str, ...] = chz.field(default=("optimal",), doc="Who answers in tests")
    things_file: str | None = chz.field(
        default=None, doc="A thing a line; None: the table that comes with it"
    )
    max_turns: int = chz.field(default=20, doc="Questions, the guess among them")
    explain: bool = chz.field(default=False, doc="Say how to ask and guess")
    illegal_move_reward: float = chz.field(
        default=-1.0, doc="Of an empty or malformed reply, which ends the game"
    )

    def maker(self, split: Split) -> GameMaker:
        things = self._things()
        random.Random("twenty questions").shuffle(things)  # the same split in every run
        held_out = min(len(things) // 5, 100)
        chosen = things[:held_out] if split == "test" else things[held_out:]
        return TwentyQuestionsMaker(tuple(chosen), self.max_turns, explain=self.explain)

    def trained_seats(self) -> Sequence[int]:
        return [ASKER]

    def _things(self) -> list[str]:
        if self.things_file is None:
            return list(THINGS)
        path = Path(self.things_file).expanduser()
        if not path.is_file():
            raise ConfigurationError(f"things_file={path} is no file; give one with a thing on each line")
        things = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if len(things) < 5:
            raise ConfigurationError(f"{path} has {len(things)} things; 5 is the least")
        return things
