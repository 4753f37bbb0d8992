"""Supervised fine-tuning as one plain loop, to be read from top to bottom and changed to taste.

python -m tinker_cookbook.recipes.sl_loop                               # the tiny model, a minute, no download
python -m tinker_cookbook.recipes.sl_loop model_name=Qwen/Qwen3.5-9B-Base file_path=conversations.jsonl \\
    learning_rate=1e-4 batch_size=128

The same command again goes on from the last checkpoint. `sl_basic` does the same with the cookbook's trainer, which
also evaluates, keeps the server busy between steps and saves on Ctrl-C.
"""

import json
import logging
import random
import sys
import time
from pathlib import Path

import chz
import tinker

from tinker_cookbook import checkpoint_utils, model_info, renderers
from tinker_cookbook.command_line import run_command
from tinker_cookbook.recipes.knights import all_questions, knight_conversations
from tinker_cookbook.recipes.launch import TINY_MODEL, example_path
from tinker_cookbook.service import connect
from tinker_cookbook.supervised.common import compute_bpb, compute_mean_nll
from tinker_cookbook.supervised.data import conversation_to_datum
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tinker_cookbook.utils import ml_log

logger = logging.getLogger(__name__)


@chz.chz
class Config:
    log_path: str = example_path("sl_loop")
    model_name: str = TINY_MODEL
    base_url: str | None = None  # None: TINKER_BASE_URL, else an engine on this machine
    file_path: str | None = None  # lines of {"messages": [...]}; None: the small data of recipes/knights.py
    batch_size: int = 32
    learning_rate: float = 3e-3  # suits the tiny model; a real one wants about 1e-4
    max_length: int = 32768
    train_on_what: renderers.TrainOnWhat = renderers.TrainOnWhat.ALL_ASSISTANT_MESSAGES
    lora_rank: int = 32
    save_every: int = 20  # steps; 0: only at the end
    ttl_seconds: int | None = 604800  # how long the server keeps a checkpoint; the final one stays
    max_steps: int | None = None
    seed: int = 0  # of the adapter's first weights and of the order of the data


def main(config: Config) -> None:
    ml_logger = ml_log.setup_logging(config.log_path, config=config)

    # The data: conversations, in an order that is the same for a seed.
    if config.file_path is None:
        conversations = knight_conversations("train")
    else:
        lines = Path(config.file_path).expanduser().read_text(encoding="utf-8").splitlines()
        conversations = [json.loads(line)["messages"] for line in lines]
    random.Random(config.seed).shuffle(conversations)
    n_batches = len(conversations) // config.batch_size  # what does not fill a batch is left out
    n_steps = n_batches if config.max_steps is None else min(n_batches, config.max_steps)

    # The model: a fresh adapter, or the one of the last checkpoint together with its optimizer.
    service_client = connect(config.base_url, {"recipe_name": "sl_loop"})
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
        logger.info("going on at step %d of %d, from %s", start, n_steps, checkpoint.state_path)

    # How conversations become tokens: as the model was taught.
    tokenizer = get_tokenizer(config.model_name)
    renderer = renderers.get_renderer(model_info.get_recommended_renderer_name(config.model_name), tokenizer)

    for step in range(start, n_steps):
        started = time.perf_counter()
        if config.save_every and step % config.save_every == 0 and step > start:
            checkpoint_utils.save_checkpoint(
                training_client,
                name=f"{step:06d}",
                log_path=config.log_path,
                loop_state={"batch": step},  # the next batch to run
                ttl_seconds=config.ttl_seconds,
            )

        rows = conversations[step * config.batch_size : (step + 1) * config.batch_size]
        batch = [
            conversation_to_datum(row, renderer, config.max_length, config.train_on_what) for row in rows
        ]
        learning_rate = config.learning_rate * (1 - step / n_batches)  # falls to 0 over the data
        adam = tinker.AdamParams(learning_rate=learning_rate, beta1=0.9, beta2=0.95, eps=1e-8)

        # Both are sent before either is waited for, so that the server does not wait for us in between.
        gradient = training_client.forward_backward(batch, "cross_entropy")
        update = training_client.optim_step(adam)
        logprobs = [output["logprobs"] for output in gradient.result().loss_fn_outputs]
        update.result()

        weights = [datum.loss_fn_inputs["weights"] for datum in batch]
        targets = [datum.loss_fn_inputs["target_tokens"] for datum in batch]
        metrics = {
            "train_mean_nll": compute_mean_nll(logprobs, weights),
            "train_mean_bpb": compute_bpb(logprobs, weights, targets, tokenizer),
            "num_sequences": len(batch),
            "num_tokens": sum(datum.model_input.length for datum in batch),
            "learning_rate": learning_rate,
            "progress": (step + 1) / n_steps,
            "time_total": time.perf_counter() - started,
        }
        ml_logger.log_metrics(metrics, step=step)

    if start < n_steps:
        # `batch` is where a longer run would go on: also after max_steps, which a later run may raise.
        paths = checkpoint_utils.save_checkpoint(
            training_client, "final", config.log_path, {"batch": n_steps}, kind="both", ttl_seconds=None
        )
        logger.info("done: %s", paths)
    else:
        logger.info("%s is complete: %d of %d steps are done", config.log_path, start, n_steps)

    # What it says now, to questions it was not trained on.
    sampling_client = training_client.save_weights_and_get_sampling_client()
    params = tinker.SamplingParams(max_tokens=64, temperature=0.0, stop=renderer.get_stop_sequences())
    for question in all_questions("test")[:3]:
        prompt = renderer.build_generation_prompt([{"role": "user", "content": question.asked}])
        sample = sampling_client.sample(prompt, num_samples=1, sampling_params=params).result().sequences[0]
        answer, _ = renderer.parse_response(sample.tokens)
        logger.info("%s\n    %s", question.asked, renderers.get_text_content(answer))
    ml_logger.close()


if __name__ == "__main__":
    sys.exit(run_command(lambda: main(chz.entrypoint(Config))))
