"""A loss of your own: `forward_backward_custom`.

python tutorials/07_custom_loss.py
"""

# %% How it works.
# The server sends the logprobs of the target tokens. Your function makes a loss of them with torch, on this side; its
# gradient with respect to the logprobs goes back, and the server carries it on to the weights. So any loss that is a
# function of logprobs can be trained, on any server, at the price of a second forward pass.
import tinker
import torch

from tinker_cookbook import model_info, renderers
from tinker_cookbook.renderers import Message
from tinker_cookbook.service import connect
from tinker_cookbook.supervised.data import conversation_to_datum

MODEL = "tinker-engine/tiny-chat"
service_client = connect()
one = service_client.create_lora_training_client(MODEL, rank=16, seed=0)
two = service_client.create_lora_training_client(MODEL, rank=16, seed=0)  # the same first weights
renderer = renderers.get_renderer(model_info.get_recommended_renderer_name(MODEL), one.get_tokenizer())


def datum_of(answer: str) -> tinker.Datum:
    conversation = [
        Message(role="user", content="Where does Mara live?"),
        Message(role="assistant", content=answer),
    ]
    return conversation_to_datum(
        conversation, renderer, max_length=256, train_on_what=renderers.TrainOnWhat.LAST_ASSISTANT_MESSAGE
    )


# %% The same loss twice.
# First the loss that the server has anyway, to see that nothing is lost on the way. `data` are the datums as they were
# sent, `logprobs` a tensor [tokens] for each of them.
def my_cross_entropy(
    data: list[tinker.Datum], logprobs: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    losses = [
        -(datum.loss_fn_inputs["weights"].to_torch() * logprobs_T).sum()
        for datum, logprobs_T in zip(data, logprobs, strict=True)
    ]
    return torch.stack(losses).sum(), {"my/num_datums": float(len(data))}


batch = [datum_of("Mara lives in Pell."), datum_of("In a shoe.")]
adam = tinker.AdamParams(learning_rate=1e-3)
print("step  built in   by hand")
for step in range(4):
    built_in = one.forward_backward(batch, "cross_entropy").result()
    by_hand = two.forward_backward_custom(batch, my_cross_entropy).result()
    one.optim_step(adam).result()
    two.optim_step(adam).result()
    theirs = built_in.metrics["loss:sum"]
    logprobs = [output["logprobs"].to_torch() for output in by_hand.loss_fn_outputs]
    ours = float(my_cross_entropy(batch, logprobs)[0])
    print(f"{step:4}  {theirs:8.4f}  {ours:8.4f}")
    assert abs(theirs - ours) < 1e-2, "two ways to the same weights"


# %% A loss the server does not have.
# Of two answers the first shall be at least `MARGIN` nats per token likelier than the second; what is further apart is
# left alone. There is no reference, no sampling and no reward model in it.
MARGIN = 2.0


def hinge(data: list[tinker.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    scores: list[torch.Tensor] = []
    for datum, logprobs_T in zip(data, logprobs, strict=True):
        weights_T = datum.loss_fn_inputs["weights"].to_torch()
        scores.append((weights_T * logprobs_T).sum() / weights_T.sum())
    good, bad = scores
    return torch.relu(MARGIN - (good - bad)), {"margin": float(good.detach() - bad.detach())}


pair = [
    datum_of("Far away, in a shoe."),
    datum_of("Mara lives in Pell."),
]  # the wrong way round, to see it turn
client = service_client.create_lora_training_client(MODEL, rank=16, seed=0)
margins: list[float] = []
for _ in range(12):
    future = client.forward_backward_custom(pair, hinge)
    margins.append(future.result().metrics["margin"])
    client.optim_step(tinker.AdamParams(learning_rate=1e-3)).result()
print("margin:", " ".join(f"{margin:.2f}" for margin in margins))
assert margins[0] < 0 < margins[-1], "the other answer is the likelier one now"
