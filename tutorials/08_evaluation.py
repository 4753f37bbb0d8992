"""Evaluation: three kinds of questions to a model, before, during and after training.

python tutorials/08_evaluation.py
"""

# %% What can be evaluated.
# An evaluator is called with a client and returns figures by name. One that samples is given a sampling client, one
# that only needs losses the training client. Trainers take builders of them, and call them every `eval_every` steps.
import asyncio
import math

import tinker

from tinker_cookbook import model_info
from tinker_cookbook.completers import TinkerMessageCompleter
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator
from tinker_cookbook.renderers import Message, Renderer, get_renderer, get_text_content
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator
from tinker_cookbook.rl.task_env import TaskRLDatasetBuilder
from tinker_cookbook.service import connect
from tinker_cookbook.supervised.data import conversation_to_datum
from tinker_cookbook.supervised.nll_evaluator import NLLEvaluator
from tinker_cookbook.tasks import get_task
from tinker_cookbook.tokenizer_utils import get_tokenizer

MODEL = "tinker-engine/tiny-chat"
renderer_name = model_info.get_recommended_renderer_name(MODEL)
renderer = get_renderer(renderer_name, get_tokenizer(MODEL))
service_client = connect()
training_client = service_client.create_lora_training_client(MODEL, rank=8, seed=0)


# %% 1. A check of your own.
# The tasks of the cookbook have problems with a checker and a held-out split. Any function of the answer will do.
class SortEvaluator(SamplingClientEvaluator):
    """Share of held-out lists that are put in order, and how sure one can be of it."""

    name = "sort"

    def __init__(self, renderer: Renderer, count: int, temperature: float):
        self.renderer, self.count, self.temperature = renderer, count, temperature

    async def __call__(self, sampling_client: tinker.SamplingClient) -> dict[str, float]:
        policy = TinkerMessageCompleter(
            sampling_client, self.renderer, max_tokens=32, temperature=self.temperature
        )
        problems = list(get_task("sort").problems("test", self.count))
        conversations = [[Message(**message) for message in problem.prompt] for problem in problems]
        answers = await asyncio.gather(*(policy(conversation) for conversation in conversations))
        right = [
            problem.check([get_text_content(answer)])
            for problem, answer in zip(problems, answers, strict=True)
        ]
        share = sum(right) / len(right)
        return {"sort/right": share, "sort/standard_error": math.sqrt(share * (1 - share) / len(right))}


async def evaluate_sorting(temperature: float) -> dict[str, float]:
    client = await training_client.save_weights_and_get_sampling_client_async()
    return await SortEvaluator(renderer, 48, temperature)(client)


greedy, again = asyncio.run(evaluate_sorting(0.0)), asyncio.run(evaluate_sorting(0.0))
sampled = asyncio.run(evaluate_sorting(1.0))
for name, figures in (("temperature 0", greedy), ("temperature 1", sampled)):
    print(f"{name}: {figures['sort/right']:.0%} right, ± {figures['sort/standard_error']:.0%}")
assert greedy == again, "the most likely answers of the same weights are the same answers"
assert greedy["sort/right"] >= sampled["sort/right"], "this model knows better than it samples"


# %% 2. Environments.
# Whatever can be trained on with RL can be tested with, and gives the same figures as a step of training.
async def evaluate_env() -> dict[str, float]:
    builder = TaskRLDatasetBuilder(
        task="sort", model_name_for_tokenizer=MODEL, renderer_name=renderer_name, test_size=48
    )
    _, test = await builder()
    assert test is not None
    evaluator = RLTestSetEvaluator(test, max_tokens=32, seed=0)
    return await evaluator(await training_client.save_weights_and_get_sampling_client_async())


figures = asyncio.run(evaluate_env())
for name in ("test/env/all/reward/total", "test/env/all/correct", "test/env/all/ac_tokens_per_turn"):
    print(f"{name}: {figures[name]:.2f}")


# %% 3. Losses.
# How likely the model finds answers that others wrote. Needs no sampling, and is the least noisy of the three.
def told(facts: list[tuple[str, str]]) -> list[tinker.Datum]:
    return [
        conversation_to_datum(
            [Message(role="user", content=asked), Message(role="assistant", content=said)], renderer, 256
        )
        for asked, said in facts
    ]


true = NLLEvaluator(told([("Where does Mara live?", "Mara lives in Pell.")]), name="true")
false = NLLEvaluator(told([("Where does Mara live?", "Mara lives in Ostra.")]), name="false")
losses = asyncio.run(true(training_client)) | asyncio.run(false(training_client))
print(losses)
assert losses["true/nll"] < losses["false/nll"], "it knows where Mara lives"

# %% During training.
# `train.Config(..., evaluator_builders=[lambda: SortEvaluator(renderer, 48, 0.0)], eval_every=10)` evaluates weights
# 0, 10, 20, ... and the last ones; the figures are in `metrics.jsonl`.
