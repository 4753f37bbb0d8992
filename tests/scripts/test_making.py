"""The maker in miniature: its text, exact resume, and a folder that everybody reads alike."""

import json
import random

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scripts.tiny_chat.chatml import END, END_OF_TEXT, SPECIAL_TOKENS
from scripts.tiny_chat.make import Plan, Training, export, held_out_losses, loss_by_position, train
from scripts.tiny_chat.network import Llama, Shape, weighted_loss
from scripts.tiny_chat.optimizer import Optimizer, orthogonalize
from scripts.tiny_chat.text import CONTEXT, FIRST_SHARES, MISTAKES, SHARES, Source, batches, encoded
from scripts.tiny_chat.tokenizer import train_tokenizer
from tinker_cookbook.tasks import TASKS, Message
from tinker_engine.model.decoder import Decoder
from tinker_engine.model.load import load_model
from tinker_engine.training.trainer import Trainer
from tinker_engine.training.types import Datum

SMALL = Shape(
    vocab_size=512, hidden_size=32, layers=2, heads=2, kv_heads=1, head_dim=16, intermediate_size=64
)
PLAN = Plan(steps=6, batch_size=256, shard=24, shape=SMALL, copying_until=0.1, careless_from=0.5)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(Source(0).texts(200), vocabulary=512)


def test_text_follows_from_source_and_number(tokenizer):
    one, again = Source(3).document(tokenizer, 5), Source(3).document(tokenizer, 5)
    assert np.array_equal(one.tokens, again.tokens)
    assert list(Source(3).texts(5)) == list(Source(3).texts(5)) != list(Source(4).texts(5))


def test_only_the_assistants_words_have_full_weight(tokenizer):
    messages: list[Message] = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
    document = encoded(tokenizer, messages, prompt_weight=0.25)
    own = tokenizer.decode(document.tokens[document.weights == 1], skip_special_tokens=False)
    assert own == f"4{END}"
    assert set(document.weights) == {1.0, 0.25}
    assert document.tokens[-1] == tokenizer.token_to_id(END_OF_TEXT)


def test_long_conversations_fill_the_context(tokenizer):
    lengths = [len(Source(0).document(tokenizer, number, chained=1.0).tokens) for number in range(20)]
    assert max(lengths) == CONTEXT
    assert min(lengths) < CONTEXT // 2


def test_every_task_has_a_share_and_a_rate_of_mistakes():
    assert set(SHARES) == set(MISTAKES) == set(TASKS)
    assert set(FIRST_SHARES) < set(TASKS)


def test_careless_text_has_mistakes_and_careful_text_has_none():
    def share_wrong(careless: bool) -> float:
        source, rng = Source(0, shares={"compare": 1}, careless=careless), random.Random(0)
        drawn = [source.conversation(rng) for _ in range(200)]
        return sum(not problem.check([turns[-1]["content"]]) for problem, turns in drawn) / 200

    assert share_wrong(careless=False) == 0
    assert share_wrong(careless=True) == pytest.approx(MISTAKES["compare"], abs=0.1)


def test_batches_hold_documents_and_no_padding_has_weight(tokenizer):
    source = Source(0, prompt_weight=0.5)
    found = batches(tokenizer, source, 0, size=1024, documents=200)
    written = {tuple(source.document(tokenizer, number).tokens) for number in range(200)}
    assert len(found) > 5
    for batch in found:
        assert batch.tokens_BT.size <= 1024
        for tokens, targets, weights in zip(batch.tokens_BT, batch.targets_BT, batch.weights_BT, strict=True):
            length = int((weights > 0).sum())
            assert np.array_equal(tokens[1:length], targets[: length - 1])
            assert (*tokens[:length], targets[length - 1]) in written


def test_the_text_changes_with_progress(tokenizer):
    training = Training(PLAN, tokenizer)
    read = []
    for training.shard_step in range(PLAN.steps):
        source = training.source()
        read.append(
            "copying" if source.shares == FIRST_SHARES else "careless" if source.careless else "careful"
        )
    assert read == ["copying", "careful", "careful", "careless", "careless", "careless"]


def test_the_tokenizer_takes_any_text_and_keeps_digits_apart(tokenizer):
    for text in ("", "2718", "naïve ☃ \x00\n\t", "ÅΩ漢字🙂"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.encode("2718").tokens == ["2", "7", "1", "8"]
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))


@pytest.mark.long
def test_a_stopped_run_ends_with_the_same_weights_and_log(tokenizer, tmp_path):
    whole, first = tmp_path / "whole", tmp_path / "first"
    whole.mkdir()
    first.mkdir()
    undisturbed = Training(PLAN, tokenizer)
    train(undisturbed, whole, log_every=1, save_every=2)

    stopped = Training(PLAN, tokenizer)
    learned = stopped.learn

    def learn_until_the_power_fails(batch):
        if stopped.step == 3:  # after the checkpoint of step 2
            raise KeyboardInterrupt
        return learned(batch)

    stopped.learn = learn_until_the_power_fails
    with pytest.raises(KeyboardInterrupt):
        train(stopped, first, log_every=1, save_every=2)
    resumed = Training(PLAN, tokenizer)
    train(resumed, first, log_every=1, save_every=2)

    for name, tensor in undisturbed.network.state_dict().items():
        assert torch.equal(tensor, resumed.network.state_dict()[name]), name
    logs = [
        [json.loads(line) for line in (f / "training.jsonl").read_text().splitlines()] for f in (whole, first)
    ]
    for log in logs:
        for line in log:
            line.pop("seconds", None)
            line.pop("tokens_per_second", None)
    assert logs[0] == logs[1]
    assert [line["step"] for line in logs[0]] == list(range(PLAN.steps + 1))


def test_a_checkpoint_of_another_plan_is_refused(tokenizer, tmp_path):
    Training(PLAN, tokenizer).save(tmp_path / "checkpoint.pt")
    other = Training(Plan(steps=7, shape=SMALL), tokenizer)
    with pytest.raises(SystemExit, match="another plan"):
        train(other, tmp_path)


def test_the_exported_folder_gives_everybody_the_same_logits(tokenizer, tmp_path):
    training = Training(PLAN, tokenizer)
    digest = export(training, tmp_path / "model")
    assert len(digest) == 64
    tokens = Source(0).document(tokenizer, 0).tokens
    # Half precision is what is stored; the maker's own network has to read it back to compare.
    state = {name: tensor.half().float() for name, tensor in training.network.state_dict().items()}
    training.network.load_state_dict(state)
    reference = LlamaForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    with torch.inference_mode():
        ours = training.network.logits(training.network(torch.from_numpy(tokens)[None]))[0]
        theirs = reference(torch.from_numpy(tokens)[None]).logits[0]
    assert (ours - theirs).abs().max() < 1e-4
    model = load_model(str(tmp_path / "model"), dtype="float32")
    datum = Datum(
        tokens[:-1].tolist(), {"target_tokens": tokens[1:].tolist(), "weights": [1.0] * (len(tokens) - 1)}
    )
    (scored,) = Trainer(Decoder(model.spec, model.weights)).forward(None, [datum], "cross_entropy").logprobs
    expected = theirs[:-1].log_softmax(-1).gather(1, torch.from_numpy(tokens[1:])[:, None])[:, 0]
    assert (scored - expected).abs().max() < 1e-4


def test_held_out_losses_are_of_the_assistants_tokens(tokenizer):
    training = Training(PLAN, tokenizer)
    chance = np.log(SMALL.vocab_size)
    by_task = held_out_losses(training, count=2)
    assert list(by_task) == list(TASKS)
    assert all(loss == pytest.approx(chance, rel=0.1) for loss in by_task.values())
    by_position = loss_by_position(training, documents=8)
    assert list(by_position) == ["0–256", "256–512", "512–768", "768–1024"]
    assert all(loss == pytest.approx(chance, rel=0.1) for loss in by_position.values())


def test_the_loss_is_the_weighted_mean_over_what_has_weight():
    torch.manual_seed(0)
    network = Llama(SMALL)
    tokens, targets = torch.randint(0, 512, (2, 3, 7))
    weights = torch.rand(3, 7) * (torch.rand(3, 7) > 0.3)
    logits = network.logits(network(tokens))
    losses = -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    expected = (losses * weights).sum() / weights.sum()
    torch.testing.assert_close(weighted_loss(network, tokens, targets, weights), expected)


def test_gradients_equal_those_of_transformers():
    torch.manual_seed(0)
    network = Llama(SMALL)
    reference = LlamaForCausalLM(LlamaConfig(**SMALL.hf_config()))
    reference.load_state_dict(network.state_dict(), strict=False)
    reference.tie_weights()
    tokens, targets = torch.randint(0, 512, (2, 3, 40))
    weighted_loss(network, tokens, targets, torch.ones(3, 40)).backward()
    logits = reference(tokens).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    theirs = dict(reference.named_parameters())
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-4, atol=1e-6)


def test_an_update_is_nearly_orthogonal():
    torch.manual_seed(0)
    singular = torch.linalg.svdvals(orthogonalize(torch.randn(2, 16, 48)))
    assert singular.min() > 0.5
    assert singular.max() < 1.5


def test_the_optimizer_resumes_exactly():
    def network_after(steps: int, restored: bool) -> Llama:
        torch.manual_seed(0)
        network = Llama(SMALL)
        optimizer = Optimizer(network, steps)
        generator = torch.Generator().manual_seed(1)
        for step in range(steps):
            if restored and step == 2:
                state = optimizer.state_dict()
                optimizer = Optimizer(network, steps)
                optimizer.load_state_dict(state)
            tokens, targets = torch.randint(0, 512, (2, 2, 9), generator=generator)
            weighted_loss(network, tokens, targets, torch.ones(2, 9)).backward()
            optimizer.step()
        return network

    one, other = network_after(4, restored=False), network_after(4, restored=True)
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


def test_the_learning_rate_rises_stays_and_falls():
    optimizer = Optimizer(Llama(SMALL), 10, warmup_steps=2, decay_share=0.5)
    factors = []
    for optimizer.steps_done in range(10):
        factors.append(optimizer.lr_factor())
    assert factors == [0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2]


def test_a_step_without_gradients_is_an_error():
    with pytest.raises(RuntimeError, match="backward"):
        Optimizer(Llama(SMALL), 10).step()
