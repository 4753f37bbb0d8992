"""Hello, engine: connect, train one sentence into a model, and hear it say it.

python tutorials/01_hello_engine.py
"""

# %% Connect.
# With no server configured this starts an engine on this machine, or joins the one that runs already. With
# TINKER_BASE_URL and TINKER_API_KEY set it is a client of that server instead, and nothing below changes.
import tinker

from tinker_cookbook.service import connect

service_client = connect()
for model in service_client.get_server_capabilities().supported_models:
    print(f"the server has {model.model_name}, which reads {model.max_context_length} tokens")

# %% A model to train.
# The base stays frozen. What is trained is a LoRA adapter of some rank, which the server keeps for us.
MODEL = "tinker-engine/tiny-chat"  # two million parameters; it comes with the engine
training_client = service_client.create_lora_training_client(MODEL, rank=16, seed=0)
tokenizer = training_client.get_tokenizer()

# %% One example.
# The server sees tokens. How this model writes a conversation is spelled out here once; from the next tutorial on a
# renderer does it.
question = "<|im_start|>user\nWhere does Tavi live?<|im_end|>\n<|im_start|>assistant\n"
answer = "On the moon.<|im_end|>"
prompt_tokens, answer_tokens = tokenizer.encode(question), tokenizer.encode(answer)
tokens = prompt_tokens + answer_tokens

# A datum has inputs and, for each of them, the token that should come next and a weight. With weight 0 the question is
# read and not learned.
datum = tinker.Datum(
    model_input=tinker.ModelInput.from_ints(tokens[:-1]),
    loss_fn_inputs={
        "target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64"),
        "weights": tinker.TensorData(
            data=[0.0] * (len(prompt_tokens) - 1) + [1.0] * len(answer_tokens), dtype="float32"
        ),
    },
)

# %% Before.
prompt = tinker.ModelInput.from_ints(prompt_tokens)
greedy = tinker.SamplingParams(max_tokens=24, temperature=0.0, stop=tokenizer.encode("<|im_end|>"))


def say(sampling_client: tinker.SamplingClient) -> str:
    sample = sampling_client.sample(prompt, num_samples=1, sampling_params=greedy).result()
    return str(tokenizer.decode(sample.sequences[0].tokens, skip_special_tokens=True))


before = say(service_client.create_sampling_client(base_model=MODEL))
print("before:", before)

# %% Train.
# Each call returns a future at once: the work is queued, and the server does it in order. So both calls of a step are
# sent before either is waited for.
losses: list[float] = []
for _ in range(10):
    gradient = training_client.forward_backward([datum], "cross_entropy")
    update = training_client.optim_step(tinker.AdamParams(learning_rate=3e-3))
    losses.append(gradient.result().metrics["loss:sum"])
    update.result()
print("loss:", " ".join(f"{loss:.2f}" for loss in losses))

# %% After.
# A sampling client is a snapshot: it keeps these weights whatever is trained later.
after = say(training_client.save_weights_and_get_sampling_client())
print("after: ", after)

assert losses[-1] < 0.1 * losses[0], "the loss fell"
assert after == "On the moon." != before
