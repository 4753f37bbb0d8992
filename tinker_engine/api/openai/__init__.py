"""The OpenAI API for what this server samples: /v1/models, /v1/chat/completions and /v1/completions.

| file | what it knows |
|---|---|
| `backend` | what the routes need of an engine |
| `request` | the JSON that may be sent, and what of it is refused |
| `messages` | chat messages as a template takes them |
| `vocabulary` | a model folder's tokenizer, end tokens and template |
| `text` | tokens → text that can be shown: whole characters, nothing of a stop |
| `reply` | text → reasoning, content and tool calls |
| `answer` | the JSON that is sent back, whole or in chunks |
| `stream` | several samples as one stream; clients that go away |
| `routes` | one request from beginning to end |

The order is that of a request. Nothing here imports torch.
"""

from tinker_engine.api.openai.backend import Backend, Delta, Generation, ServedModel
from tinker_engine.api.openai.routes import openai_routes

__all__ = ["Backend", "Delta", "Generation", "ServedModel", "openai_routes"]
