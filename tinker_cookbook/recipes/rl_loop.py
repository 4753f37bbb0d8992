"""Reinforcement learning as one plain loop, to be read from top to bottom and changed to taste.

python -m tinker_cookbook.recipes.rl_loop                               # the tiny model, some minutes, no download
python -m tinker_cookbook.recipes.rl_loop model_name=HuggingFaceTB/SmolLM2-135M-Instruct learning_rate=1e-3

The model is asked for sums it is unsure of. Each is answered `group_size` times, and answers that are better than the
others of their group become more likely, those that are worse less. The same command again goes on from the last
checkpoint. `rl_basic` does the same with the cookbook's trainer, which also evaluates, writes reports and takes
environments of any kind.
"""

import logging
import random
import sys
import time

import chz
import tinker

from tinker_cookbook import checkpoint_utils, model_info, renderers
from tinker_cookbook.command_line import run_command
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path
from tinker_cookbook.service import connect
from tinker_cookbook.tasks.arithmetic import last_integer
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils import ml_log

logger = logging.getLogger(__name__)


@chz.chz
class Config:
    log_path: str = example_path("rl_loop")
    model_name: str = TINY_MODEL
    base_url: str | None = None  # None: TINKER_BASE_URL, else an engine on this machine
    batch_size: int = 32  # questions of a step
    group_size: int = 8  # answers to each
    updates_per_step: int = 4  # each on a part of the answers
    largest: int = 30  # of the numbers to add
    n_steps: int = 44
    max_steps: int | None = None  # stop sooner; a later run goes on
    learning_rate: float = 3e-3  # suits the tiny model; a real one wants 1e-5 to 1e-4, a small one 1e-3
    max_tokens: int = 64
    lora_rank: int = 32
    seed: int = 0  # of the adapter's first weights, of the questions and of what is sampled
    save_every: int = 20  # steps; 0: only at the end
    ttl_seconds: int | None = 604800  # how long the server keeps a checkpoint; the final one stays


def main(config: Config) -> None:
    ml_logger = ml_log.setup_logging(config.log_path, config=config)

    # The model: a fresh adapter, or the one of the last checkpoint together with its optimizer.
    service_client = connect(config.base_url, {"recipe_name": "rl_loop"})
    checkpoint = checkpoint_utils.get_last_checkpoint(config.log_path)
    if checkpoint is None or checkpoint.state_path is None:
        start = 0
        training_client = service_client.create_lora_training_client(
            config.model_name, rank=config.lora_rank, seed=config.seed
        )
    else:
        start = checkpoint.batch or 0
        training_client = service_client.create_training_client_from_state_with_optimizer(
            checkpoint.state_path
        )
        logger.info("going on at step %d of %d, from %s", start, config.n_steps, checkpoint.state_path)

    # How questions become tokens, and tokens answers: as the model was taught.
    tokenizer = get_tokenizer(config.model_name)
    renderer = renderers.get_renderer(model_info.get_recommended_renderer_name(config.model_name), tokenizer)

    last = config.n_steps if config.max_steps is None else min(config.n_steps, config.max_steps)
    for step in range(start, last):
        started = time.perf_counter()
        if config.save_every and step % config.save_every == 0 and step > start:
            checkpoint_utils.save_checkpoint(
                training_client,
                name=f"{step:06d}",
                log_path=config.log_path,
                loop_state={"batch": step},  # the next batch to run
                ttl_seconds=config.ttl_seconds,
            )

        # Ask every question at once, with the weights of this moment; the server answers all of them together.
        sampling_client = training_client.save_weights_and_get_sampling_client()
        rng = random.Random(f"{config.seed} {step}")  # the same again if a run is resumed
        sums = [
            (rng.randint(0, config.largest), rng.randint(0, config.largest)) for _ in range(config.batch_size)
        ]
        prompts = [
            renderer.build_generation_prompt(
                [
                    {"role": "system", "content": "Think first."},
                    {"role": "user", "content": f"What is {a} + {b}?"},
                ]
            )
            for a, b in sums
        ]
        params = [
            tinker.SamplingParams(
                max_tokens=config.max_tokens, stop=renderer.get_stop_sequences(), seed=rng.getrandbits(31)
            )
            for _ in range(config.batch_size)
        ]
        futures = [
            sampling_client.sample(prompt, num_samples=config.group_size, sampling_params=each)
            for prompt, each in zip(prompts, params, strict=True)
        ]

        data: list[tinker.Datum] = []
        rewards: list[float] = []
        for (a, b), prompt, future in zip(sums, prompts, futures, strict=True):
            # Reward: 1 for the right sum, 0 for anything else.
            answers = future.result().sequences
            rewards_G: list[float] = []
            for answer in answers:
                message, _ = renderer.parse_response(answer.tokens)
                rewards_G.append(float(last_integer(renderers.get_text_content(message)) == a + b))
            rewards += rewards_G

            # Advantage: how much better than the average answer to the same question.
            mean = sum(rewards_G) / len(rewards_G)
            if all(reward == mean for reward in rewards_G):
                continue  # all right or all wrong: nothing to learn
            for answer, reward in zip(answers, rewards_G, strict=True):
                data.append(make_datum(prompt, answer, reward - mean))

        # Several updates, each on its share of the answers. All are sent before any is waited for, so that the server
        # does not wait for us in between. After the first, the policy is no longer the one that was sampled: "ppo"
        # clips what it would gain by moving further from it.
        learning_rate = config.learning_rate * (1 - step / config.n_steps)  # falls to 0 over the steps
        adam = tinker.AdamParams(learning_rate=learning_rate, beta1=0.9, beta2=0.95, eps=1e-8)
        rng.shuffle(data)
        parts = [data[i :: config.updates_per_step] for i in range(config.updates_per_step)]
        pending = []
        for part in filter(None, parts):
            pending.append(training_client.forward_backward(part, "ppo"))
            pending.append(training_client.optim_step(adam))
        for future in pending:
            future.result()

        metrics = {
            "reward/total": sum(rewards) / len(rewards),
            "progress/batch": step,
            "progress/done_frac": (step + 1) / config.n_steps,
            "optim/lr": learning_rate,
            "num_datums": len(data),
            "time/total": time.perf_counter() - started,
        }
        ml_logger.log_metrics(metrics, step=step)

    if start < last:
        paths = checkpoint_utils.save_checkpoint(
            training_client,
            "final",
            config.log_path,
            {"batch": last},
            kind="both",
            ttl_seconds=None,
        )
        logger.info("done: %s", paths)
    else:
        logger.info("%s is complete: raise n_steps or max_steps to train on", config.log_path)
    ml_logger.close()


def make_datum(prompt: tinker.ModelInput, answer: tinker.SampledSequence, advantage: float) -> tinker.Datum:
    """What the model is to learn from one answer: each of its tokens, with the advantage of the whole.

    Inputs are all tokens but the last and targets all but the first; of the prompt nothing is learned.
    """
    before = prompt.length - 1
    tokens, logprobs = list(answer.tokens), list(answer.logprobs or [])
    full = [*prompt.to_ints(), *tokens]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(full[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=full[1:], dtype="int64"),
            "logprobs": tinker.TensorData(data=[0.0] * before + logprobs, dtype="float32"),
            "advantages": tinker.TensorData(data=[0.0] * before + [advantage] * len(tokens), dtype="float32"),
        },
    )


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(chz.entrypoint(Config))))
