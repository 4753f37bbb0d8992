"""The same DPO run by TRL and by us: same model, pairs, order, first weights and settings. Are the curves the same?

    python -m benchmarks.preference_trl PAIRS.json --trl-python VENV/bin/python
                                            writes benchmarks/results/preference_trl.json and .png (ten minutes)

PAIRS.json has rows of `conversations`, `chosen` and `rejected` as in LLaMA-Factory's dpo_en_demo.json. The other
environment needs: pip install trl peft.

TRL is given the prompt as our renderer writes it and tokenises it and the answers itself; that its tokens and ours are
the same is checked. (With the chat template of SmolLM2 it would also learn the newline after the end of the turn.) The
head is left out of the adapter: TRL 1.16 computes logprobs from the head's frozen weight, and an adapter on it would
have no effect there.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import chz
import tinker
import torch

from benchmarks.limits import RESULTS, machine
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
from tinker_cookbook.preference.preference_datasets import ComparisonDatasetBuilder
from tinker_cookbook.preference.types import Comparison, LabeledComparison
from tinker_cookbook.renderers import Message
from tinker_cookbook.service import connect
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig
from tinker_cookbook.tokenizer_utils import Tokenizer, get_tokenizer
from tinker_cookbook.utils.curves import save_comparison_png
from tinker_engine.model.folders import resolve
from tinker_engine.model.lora import Adapter, LoraSpec
from tinker_engine.model.lora_io import save_adapter
from tinker_engine.model.spec import ModelSpec

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
ROLES = {"human": "user", "gpt": "assistant", "system": "system"}
LORA = LoraSpec(rank=16, seed=0, train_unembed=False)
CURVES = ("loss", "margin", "chosen_reward", "rejected_reward")
HYPERPARAMETERS: dict[str, Any] = {
    "learning_rate": 3e-4,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_eps": 1e-8,
}
BETA = 0.1
TRL_WORKER = Path(__file__).parent / "peers" / "trl_dpo_worker.py"


@chz.chz
class DemoPairs(ComparisonDatasetBuilder):
    path: str

    def get_train_and_test_datasets(self) -> tuple[list[dict[str, Any]], None]:
        return json.loads(Path(self.path).read_text(encoding="utf-8")), None

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison:
        prompt = [_message(turn) for turn in example["conversations"]]
        sides = ([_message(example[side])] for side in ("chosen", "rejected"))
        return LabeledComparison(Comparison(prompt, *sides), "A")


def _message(turn: dict[str, str]) -> Message:
    return Message(role=ROLES[turn["from"]], content=turn["value"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--trl-python", required=True, help="python of an environment with trl and peft")
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--renderer", default="smollm2")
    parser.add_argument("--out", type=Path, default=RESULTS / "preference_trl", help="without its ending")
    parser.add_argument("--longest", type=int, default=320, help="tokens of a sequence; longer pairs go")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(chosen.threads))  # of our engine
    builder = DPODatasetBuilderFromComparisons(
        common_config=ChatDatasetBuilderCommonConfig(
            model_name_for_tokenizer=chosen.model,
            renderer_name=chosen.renderer,
            max_length=chosen.longest,
            batch_size=chosen.batch_size,
        ),
        comparison_builder=DemoPairs(path=str(chosen.pairs)),
    )
    with tempfile.TemporaryDirectory() as folder:
        ours = our_steps(Path(folder) / "ours", chosen.model, builder, chosen.epochs)
        data = in_order(builder, chosen.epochs)
        theirs = trl_steps(Path(folder), chosen, data, get_tokenizer(chosen.model))
    same = same_tokens(data, theirs["pairs"])
    figures = {
        "command": "python -m benchmarks.preference_trl dpo_en_demo.json --trl-python VENV/bin/python",
        "machine": machine(),
        "versions_beside_ours": theirs["versions"],
        "model": chosen.model,
        "lora": {"rank": LORA.rank, "targets": sorted({name.split(".")[-4] for name in theirs["trained"]})},
        "settings": {**HYPERPARAMETERS, "beta": BETA, "batch_size": chosen.batch_size, "steps": len(ours)},
        "pairs": len(data) // 2,
        "pairs_of_the_same_tokens": same,
        "largest_difference": largest_difference(ours, theirs["steps"]),
        "first_and_last": {"ours": [ours[0], ours[-1]], "trl": [theirs["steps"][0], theirs["steps"][-1]]},
        "ours": {key: [round(row[key], 6) for row in ours] for key in CURVES},
        "trl": {key: [round(row[key], 6) for row in theirs["steps"]] for key in CURVES},
    }
    chosen.out.with_suffix(".json").write_text(json.dumps(figures, indent=2) + "\n")
    gap = figures["largest_difference"]["loss"]
    title = f"DPO by TRL and by us, one curve over the other: losses differ by {gap:.1g} at most"
    curves = {"tinker_cookbook": ours, "TRL": theirs["steps"]}
    save_comparison_png(curves, chosen.out.with_suffix(".png"), keys=["loss", "margin"], title=title)
    print(json.dumps({key: figures[key] for key in ("pairs_of_the_same_tokens", "largest_difference")}))


def first_weights(service: tinker.ServiceClient, model: str, lora: LoraSpec) -> str:
    """Where the server keeps them. A run that starts there has the targets that `lora` says."""
    client = service.create_lora_training_client(
        model, rank=lora.rank, seed=lora.seed, train_unembed=lora.train_unembed
    )
    return client.save_state("before_training").result().path


def our_steps(
    log: Path, model: str, builder: DPODatasetBuilderFromComparisons, epochs: int
) -> list[dict[str, float]]:
    train_dpo.main(
        train_dpo.Config(
            log_path=str(log),
            model_name=model,
            recipe_name="benchmark",
            load_checkpoint_path=first_weights(connect(), model, LORA),
            lora_rank=LORA.rank,
            dataset_builder=builder,
            dpo_beta=BETA,
            num_epochs=epochs,
            save_every=0,
            eval_every=0,
            **HYPERPARAMETERS,
        )
    )
    rows = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    kept = ("step", "margin", "chosen_reward", "rejected_reward", "learning_rate")
    return [{"loss": row["dpo_loss"], **{key: row[key] for key in kept}} for row in rows if "dpo_loss" in row]


def in_order(builder: DPODatasetBuilderFromComparisons, epochs: int) -> list[tinker.Datum]:
    """All datums as the run saw them."""
    dataset, _ = builder()
    data: list[tinker.Datum] = []
    for epoch in range(epochs):
        dataset.set_epoch(seed=epoch)
        for batch in range(len(dataset)):
            data += dataset.get_batch(batch)
    return data


def trl_steps(
    folder: Path, chosen: argparse.Namespace, data: list[tinker.Datum], tokenizer: Tokenizer
) -> dict[str, Any]:
    options = {**HYPERPARAMETERS, "batch_size": chosen.batch_size, "threads": chosen.threads}
    write_for_trl(folder, chosen.model, LORA, options, text_pairs(data, tokenizer))
    subprocess.run([chosen.trl_python, str(TRL_WORKER), str(folder)], check=True)
    return json.loads((folder / "trl.json").read_text())


def write_for_trl(
    folder: Path, model: str, lora: LoraSpec, options: dict[str, Any], pairs: list[dict[str, str]]
) -> None:
    """All that TRL's worker reads. Its adapter begins with the weights of our run: the seed is the same."""
    source = resolve(model)
    adapter = Adapter.initialised(ModelSpec.from_folder(source), lora, device=torch.device("cpu"))
    save_adapter(adapter, folder / "adapter", model)
    settings = {**options, "beta": BETA, "model": str(source)}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "pairs.json").write_text(json.dumps(pairs))


def text_pairs(data: list[tinker.Datum], tokenizer: Tokenizer) -> list[dict[str, str]]:
    return [
        {
            name: tokenizer.decode(tokens)
            for name, tokens in zip(("prompt", "chosen", "rejected"), _parts(*both), strict=True)
        }
        for both in zip(data[0::2], data[1::2], strict=True)
    ]


def same_tokens(data: list[tinker.Datum], theirs: list[dict[str, list[int]]]) -> int:
    """Pairs of which TRL made the same prompt and completions; all, or the comparison means nothing."""
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    ours = [_parts(*both) for both in zip(data[0::2], data[1::2], strict=True)]
    return sum(list(own) == [row[name] for name in names] for own, row in zip(ours, theirs, strict=True))


def _parts(chosen: tinker.Datum, rejected: tinker.Datum) -> tuple[list[int], list[int], list[int]]:
    prompt, good = _split(chosen)
    again, bad = _split(rejected)
    assert prompt == again, "both answer the same prompt"
    return prompt, good, bad


def _split(datum: tinker.Datum) -> tuple[list[int], list[int]]:
    """Prompt and completion: the weights are 0 on one and 1 on the other, and stand one to the left."""
    targets, weights = (datum.loss_fn_inputs[name].tolist() for name in ("target_tokens", "weights"))
    tokens = [datum.model_input.to_ints()[0], *(int(token) for token in targets)]
    first = weights.index(1.0) + 1
    return tokens[:first], tokens[first:]


def largest_difference(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> dict[str, float]:
    keys = (*CURVES, "learning_rate")
    pairs = list(zip(ours, theirs, strict=True))
    return {key: max(abs(own[key] - other[key]) for own, other in pairs) for key in keys}


if __name__ == "__main__":
    main()
