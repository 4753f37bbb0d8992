"""From datums to losses, on logprobs that are made up."""

import pytest
import tinker
import torch

from tests.tinker_cookbook.preference.pairs import labeled, learned, pairs, polite, singles
from tests.tinker_cookbook.rl.tiny import text_of
from tinker_cookbook.exceptions import ConfigurationError, DataValidationError
from tinker_cookbook.preference.losses import LOSSES, compute_dpo_loss
from tinker_cookbook.preference.objective import Objective, Scored, mismatched_datums
from tinker_cookbook.preference.reference import whole_sequence


def made_up(data: list[tinker.Datum], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = [len(datum.loss_fn_inputs["weights"].tolist()) for datum in data]
    return [(-3 * torch.rand(size, generator=generator)).requires_grad_() for size in sizes]


def sums(data: list[tinker.Datum], logprobs: list[torch.Tensor]) -> list[torch.Tensor]:
    weights = [datum.loss_fn_inputs["weights"].to_torch() for datum in data]
    return [(each * weight).sum() for each, weight in zip(logprobs, weights, strict=True)]


def test_dpo_of_a_batch_is_dpo_of_its_sums_and_prompts_have_no_part_in_it():
    data = pairs([polite(i) for i in range(4)])()[0].get_batch(0)
    logprobs, references = made_up(data), [float(x) for x in sums(data, made_up(data, seed=1))]
    loss, metrics = Objective("dpo", 0.3, {})(Scored(data, logprobs, references))
    totals, refs = sums(data, logprobs), [torch.tensor(x) for x in references]
    expected, figures = compute_dpo_loss(totals[::2], totals[1::2], refs[::2], refs[1::2], 0.3)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    assert {key: metrics[key] for key in figures} == pytest.approx(figures, rel=1e-4)
    tokens = sum(sum(datum.loss_fn_inputs["weights"].tolist()) for datum in data[::2])
    assert metrics["chosen_nll"] == pytest.approx(-float(sum(totals[::2])) / tokens, rel=1e-5)
    loss.backward()
    for datum, each in zip(data, logprobs, strict=True):
        assert each.grad is not None
        weights = datum.loss_fn_inputs["weights"].to_torch()
        assert torch.equal(each.grad != 0, weights != 0)


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_pulls_the_chosen_up_and_pushes_the_rejected_down(name):
    builder = pairs if LOSSES[name].is_paired else singles
    data = builder([polite(i) for i in range(4)], batch_size=4)()[0].get_batch(0)
    logprobs = made_up(data)
    references = [float(x) for x in sums(data, logprobs)]
    mismatched = None
    if not LOSSES[name].is_paired:
        others = mismatched_datums(data)
        mismatched = Scored(others, made_up(others), [-20.0] * len(others))
    loss, metrics = Objective(name, LOSSES[name].usual_beta, {})(
        Scored(data, logprobs, references), mismatched
    )
    loss.backward()
    for datum, each in zip(data, logprobs, strict=True):
        assert each.grad is not None
        pull = -float(each.grad.sum())
        assert (pull > 0) == learned(datum).startswith("Happily")
    assert metrics[f"{name}_loss"] == pytest.approx(float(loss))


def test_a_trailing_datum_goes_with_a_warning(caplog):
    """Behaviour 86."""
    data = pairs([polite(i) for i in range(4)])()[0].get_batch(0)
    assert Objective("dpo", 0.1, {}).usable(data[:5]) == data[:4]
    assert "the last one has no partner" in caplog.text
    with pytest.raises(DataValidationError, match="no pair"):
        Objective("dpo", 0.1, {}).usable(data[:1])


def test_pairs_and_single_examples_are_not_taken_for_each_other():
    rows = [polite(i) for i in range(4)]
    with pytest.raises(ConfigurationError, match="loss=kto"):
        Objective("dpo", 0.1, {}).usable(singles(rows)()[0].get_batch(0))
    with pytest.raises(ConfigurationError, match="KTODatasetBuilder"):
        Objective("kto", 0.1, {}).usable(pairs(rows)()[0].get_batch(0))


def test_mismatched_are_answers_to_other_prompts_that_fit():
    data = singles([labeled("one", "to the first", "no"), labeled("two", "to the second", "never")])()[0]
    others = mismatched_datums(data.get_batch(0))
    asked_and_answered = [(text_of(datum.model_input.to_ints()), learned(datum)) for datum in others]
    for asked, answer in asked_and_answered:
        assert ("one" in asked) == (answer.startswith(("to the sec", "never")))
    longest = max(whole_sequence(datum).length for datum in data.get_batch(0))
    assert max(whole_sequence(datum).length for datum in others) <= longest
    with pytest.raises(DataValidationError, match="at least two"):
        mismatched_datums(data.get_batch(0)[:1])


def test_a_beta_that_is_usual_for_another_loss_is_told(caplog):
    Objective("simpo", 0.1, {})
    assert "far below what simpo is used with: 2" in caplog.text
