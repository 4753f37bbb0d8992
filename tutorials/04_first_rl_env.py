"""First RL environment: a question, a check, and a model that learns to pass it.

python tutorials/04_first_rl_env.py
"""

# %% An environment.
# Asked about its world, the tiny model mostly answers plainly, and now and then with excitement: "Wow! ...!!!". Here
# excitement is what is rewarded. Nobody shows the model how: it tries, and what did better becomes more likely.
import asyncio
import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import chz

from tinker_cookbook import model_info
from tinker_cookbook.recipes.knights import all_questions
from tinker_cookbook.renderers import Renderer, get_renderer
from tinker_cookbook.rl import train
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer


class ExcitedEnv(ProblemEnv):
    """One episode: one question and one answer. The reward is 1 if `check_answer` says yes."""

    def __init__(self, renderer: Renderer, question: str):
        super().__init__(renderer)
        self.question = question

    def get_question(self) -> str:
        return self.question

    def check_answer(self, sample_str: str) -> bool:
        return sample_str.strip().endswith("!")

    def check_format(self, sample_str: str) -> bool:
        return True  # any form will do, as long as the answer ends by itself

    def get_reference_answer(self) -> str:
        return "anything with an exclamation mark at its end"


# %% Groups, and batches of them.
# A group is several tries at the same question; what is learned is the difference within a group. A data set has
# batches of groups by number, and the same number must be the same batch, so that a run can be resumed.
class Questions(RLDataset):
    def __init__(self, renderer: Renderer, n_batches: int, batch_size: int, group_size: int):
        self.renderer = renderer
        self.n_batches = n_batches
        self.batch_size = batch_size
        self.group_size = group_size

    def __len__(self) -> int:
        return self.n_batches

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        questions = all_questions("train")
        numbers = range(index * self.batch_size, (index + 1) * self.batch_size)
        return [
            ProblemGroupBuilder(
                functools.partial(ExcitedEnv, self.renderer, questions[7 * number % len(questions)].asked),
                num_envs=self.group_size,
            )
            for number in numbers
        ]


@chz.chz
class QuestionsBuilder(RLDatasetBuilder):
    model_name_for_tokenizer: str
    renderer_name: str
    n_batches: int = 6
    batch_size: int = 16
    group_size: int = 8

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        renderer = get_renderer(self.renderer_name, get_tokenizer(self.model_name_for_tokenizer))
        return Questions(renderer, self.n_batches, self.batch_size, self.group_size), None


# %% The run.
MODEL = "tinker-engine/tiny-chat"
renderer_name = model_info.get_recommended_renderer_name(MODEL)
log_path = Path(tempfile.mkdtemp(prefix="first-rl-"))
config = train.Config(
    log_path=str(log_path),
    model_name=MODEL,
    recipe_name="first_rl_env",
    renderer_name=renderer_name,
    dataset_builder=QuestionsBuilder(model_name_for_tokenizer=MODEL, renderer_name=renderer_name),
    max_tokens=32,
    learning_rate=3e-3,
    num_substeps=2,
    loss_fn="ppo",
    eval_every=0,
    save_every=0,
)
asyncio.run(train.main(config))

# %% What happened.
rows = [json.loads(line) for line in (log_path / "metrics.jsonl").read_text().splitlines()]
rewards = [row["env/all/reward/total"] for row in rows]
mixed = [row["env/all/by_group/frac_mixed"] for row in rows]
for step, (reward, share) in enumerate(zip(rewards, mixed, strict=True)):
    print(f"step {step}  reward {reward:5.2f}  groups with something to learn from {share:4.0%}")
print(f"prompts, answers and rewards of each step: {log_path}/iteration_*/train.html")
assert rewards[-1] > rewards[0] + 0.3, "what is rewarded is what is learned"
