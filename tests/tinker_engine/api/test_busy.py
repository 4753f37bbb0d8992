"""More requests than may wait: the SDK is told to come again, does, and gets all its answers."""

import tinker
from tinker import types

from tests.server import Server
from tinker_engine.model import tiny

FEW = """
import functools, sys
from tinker_engine import errors
from tinker_engine.core import settings

refuse = errors.BusyError.__init__

def refuse_aloud(self, *arguments, **options):
    print("too many", file=sys.stderr, flush=True)
    refuse(self, *arguments, **options)

errors.BusyError.__init__ = refuse_aloud
settings.Limits = functools.partial(settings.Limits, queued_requests=4)
from tinker_engine.cli import main
sys.exit(main(sys.argv[1:]))
"""
REQUESTS = 24


def test_the_sdk_comes_again_when_too_many_wait(tmp_path):
    server = Server(tmp_path)
    server.program = ("-c", FEW)
    server.start()
    try:
        service = tinker.ServiceClient(base_url=server.url, api_key=server.key)
        sampler = service.create_sampling_client(base_model=tiny.NAME)
        params = types.SamplingParams(max_tokens=64, stop=[])
        prompts = [types.ModelInput.from_ints([i + 10, 11, 12]) for i in range(REQUESTS)]
        futures = [sampler.sample(prompt, 1, params) for prompt in prompts]
        answers = [future.result(timeout=120) for future in futures]
        assert all(len(answer.sequences[0].tokens) == 64 for answer in answers)
        assert "too many" in server.output.read_text()
    finally:
        server.close()
