"""Which models a server has, for commands that are not told one."""

import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from tinker.types import SupportedModel

from tinker_cookbook import service
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.local_models import without_variant

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 150  # the SDK would go on trying for many minutes; an engine may take two to start


class ServedModel(NamedTuple):
    name: str
    context: int | None  # tokens it can read and write, if the server says


def served_model(model_name: str | None, base_url: str | None) -> ServedModel:
    """The one that is asked for, else the first that can be trained."""
    served = [model for model in _supported_models(base_url) if model.trainable is not False]
    contexts = {model.model_name: model.max_context_length for model in served if model.model_name}
    if not contexts:
        raise ConfigurationError("the server has no model that can be trained")
    if model_name is None:
        name, *others = contexts
        if others:
            logger.info("no model_name is given: %s; the server also has %s", name, ", ".join(others))
        return ServedModel(name, contexts[name])
    known = next((each for each in (model_name, without_variant(model_name)) if each in contexts), None)
    if known is None:
        raise ConfigurationError(f"the server has no model {model_name}; it has {', '.join(contexts)}")
    return ServedModel(model_name, contexts[known])


def _supported_models(base_url: str | None) -> Sequence[SupportedModel]:
    answer: Future[Sequence[SupportedModel]] = Future()

    def ask() -> None:
        try:
            answer.set_result(service.connect(base_url).get_server_capabilities().supported_models)
        except BaseException as error:  # the boundary of the thread: raised again by the one who waits
            answer.set_exception(error)

    # A thread that nobody waits for at the end: the SDK cannot be told to give up sooner.
    threading.Thread(target=ask, daemon=True).start()
    try:
        return answer.result(_PATIENCE_SECONDS)
    except TimeoutError as error:
        server = base_url or os.environ.get("TINKER_BASE_URL", "of the Tinker API")
        raise ConfigurationError(f"the server {server} does not answer; is it running?") from error
