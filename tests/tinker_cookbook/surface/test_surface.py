"""The public surface: every name, parameter, default and field that users' scripts rely on.

`surface.json` is written by `python -m scripts.surface`. Build a module, take it out of NOT_YET.
"""

import functools
import importlib
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.tinker_cookbook.surface.check import differences

ROOT = Path(__file__).parents[3]
SURFACE = json.loads((Path(__file__).parent / "surface.json").read_text(encoding="utf-8"))
MODULES: dict[str, dict] = SURFACE["modules"]
EXPORTS: dict[str, list[str]] = SURFACE["exports"]

NOT_YET = {
    "tinker_cookbook.eval",
    "tinker_cookbook.eval.benchmark_evaluator",
    "tinker_cookbook.eval.benchmarks",
    "tinker_cookbook.eval.benchmarks._common",
    "tinker_cookbook.eval.benchmarks._runner",
    "tinker_cookbook.eval.benchmarks._types:BenchmarkBuilder",
    "tinker_cookbook.eval.benchmarks._types:BenchmarkConfig",
    "tinker_cookbook.eval.custom_evaluators",
    "tinker_cookbook.eval.inspect_evaluators",
    "tinker_cookbook.eval.inspect_utils",
    "tinker_cookbook.eval.run_inspect_evals",
    "tinker_cookbook.sandbox",
    "tinker_cookbook.sandbox.modal_sandbox",
    "tinker_cookbook.sandbox.sandbox_interface",
    "tinker_cookbook.sandbox.sandboxfusion",
    "tinker_cookbook.third_party.litellm.provider",
    "tinker_cookbook.third_party.openai_compat",
    "tinker_cookbook.tool_use",
    "tinker_cookbook.tool_use.agent_tool_message_env",
    "tinker_cookbook.tool_use.tools",
    "tinker_cookbook.tool_use.types",
}
"""Modules, or names of modules that exist (`module:name`), that are still to be built."""

_TML = "belongs to Inkling, whose tokenizer is a package of its vendor; `register_tokenizer` is the way in"
_ONE_PIPELINE = (
    "one pipeline, which the config makes synchronous, streaming or asynchronous, in place of three loops"
)
_ONE_RUN = "training_run evaluates and saves for all trainers"

DEVIATIONS = {
    "tinker_cookbook.rl.train:do_sync_training": _ONE_PIPELINE,
    "tinker_cookbook.rl.train:do_sync_training_with_stream_minibatch": _ONE_PIPELINE,
    "tinker_cookbook.rl.train:do_async_training": _ONE_PIPELINE,
    "tinker_cookbook.rl.train:do_train_step_and_get_sampling_client": _ONE_PIPELINE,
    "tinker_cookbook.rl.train:do_train_step_streaming_and_get_sampling_client": _ONE_PIPELINE,
    "tinker_cookbook.rl.train:WrappedTrajectoryGroup": "what comes out of the pipeline is pipeline.RolledOut",
    "tinker_cookbook.rl.train:compute_full_batch_metrics_and_get_sampling_client": _ONE_PIPELINE,
    "tinker_cookbook.rl.train:run_single_evaluation": _ONE_RUN,
    "tinker_cookbook.rl.train:run_evaluations_parallel": _ONE_RUN,
    "tinker_cookbook.rl.train:save_checkpoint_and_get_sampling_client": _ONE_RUN,
    "tinker_cookbook.preference.train_dpo:do_update": _ONE_RUN,
    "tinker_cookbook.supervised.train:SubmittedBatch": "evaluations of its step are among its metrics",
    "tinker_cookbook.tokenizer_utils:TmlTokenizer": _TML,
    "tinker_cookbook.tokenizer_utils:SupportsTmlTokenizer": _TML,
    "tinker_cookbook.tokenizer_utils:TmlRenderersTokenizerAdapter": _TML,
    "tinker_cookbook.tokenizer_utils:ensure_tml_renderers_importable": _TML,
    "tinker_cookbook.eval.custom_evaluators:evaluator": "an example must not evaluate when it is imported",
    "tinker_cookbook.eval.custom_evaluators:service_client": "an example must not connect when it is imported",
    "tinker_cookbook.eval.custom_evaluators:sampling_client": "an example must not connect when it is imported",
}
"""`module:name` that is different on purpose, and why."""

NEEDS = {
    "tinker_cookbook.eval.inspect_utils": "inspect_ai",
    "tinker_cookbook.eval.inspect_evaluators": "inspect_ai",
    "tinker_cookbook.eval.run_inspect_evals": "inspect_ai",
    "tinker_cookbook.sandbox.modal_sandbox": "modal",
    "tinker_cookbook.third_party.litellm.provider": "litellm",
}
"""Packages without which a module cannot be imported."""


@functools.cache
def imported(name: str) -> ModuleType | None:
    """None if there is no such module; one that cannot import something else is an error."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            return None
        raise


def is_built(entry: str) -> bool:
    """A package is often there before its names are."""
    module_name, _, name = entry.partition(":")
    if module_name in NEEDS:  # may be there and not importable here
        return (ROOT / module_name.replace(".", "/")).with_suffix(".py").is_file()
    names = [name] if name else [*MODULES.get(module_name, {}), *EXPORTS.get(module_name, [])]
    module = imported(module_name)
    return module is not None and any(hasattr(module, name) for name in names)


def due(module_name: str) -> ModuleType:
    if module_name in NEEDS:
        pytest.importorskip(NEEDS[module_name])
    module = imported(module_name)
    assert module is not None, f"{module_name} is missing"
    return module


@pytest.mark.parametrize("module_name", sorted(MODULES.keys() - NOT_YET))
def test_a_module_has_its_names_with_their_signatures(module_name):
    module = due(module_name)
    found = [
        words
        for name, entry in MODULES[module_name].items()
        if f"{module_name}:{name}" not in DEVIATIONS.keys() | NOT_YET
        for words in differences(module, name, entry)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", sorted(EXPORTS.keys() - NOT_YET))
def test_a_package_exports_its_names(package):
    module = due(package)
    names = [name for name in EXPORTS[package] if f"{package}:{name}" not in DEVIATIONS.keys() | NOT_YET]
    assert [name for name in names if not hasattr(module, name)] == []
    assert set(names) <= set(getattr(module, "__all__", names))


def test_what_is_not_built_yet_is_not_there_and_what_deviates_does():
    """So both lists shrink by themselves."""
    built = sorted(entry for entry in NOT_YET if is_built(entry))
    assert not built, "\n".join(["to be taken out of NOT_YET:", *built])
    for entry in DEVIATIONS:
        module_name, _, name = entry.partition(":")
        module = imported(module_name)
        if module is not None:
            assert differences(module, name, MODULES[module_name][name]), f"{entry} deviates no longer"


def test_the_lists_name_what_is_in_the_data():
    known = MODULES.keys() | EXPORTS.keys()
    for entry in NOT_YET | DEVIATIONS.keys() | NEEDS.keys():
        module_name, _, name = entry.partition(":")
        assert module_name in known, entry
        assert not name or name in [*MODULES.get(module_name, {}), *EXPORTS.get(module_name, [])], entry


# --- the check itself -------------------------------------------------------------------------------------


def ours(a, b=1, *, c=None): ...


async def slow(a): ...


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("def (a, b=1, *, c=None)", ""),
        ("def (a)", ""),
        ("def (a, b=2)", "defaults to 1 and not 2"),
        ("def (a, c=None)", "keyword-only"),
        ("def (b, a)", "by position"),
        ("def (a, d=0)", "has no parameter d"),
        ("def ()", "the parameter a has no default"),
        ("async def (a, b=1, *, c=None)", "is no coroutine function"),
    ],
)
def test_differences_of_functions_are_found(entry, words):
    found = "\n".join(differences(module_with(ours), "ours", entry))
    assert words in found
    assert bool(words) == bool(found)


def test_a_coroutine_function_is_not_a_function():
    assert differences(module_with(slow), "slow", "async def (a)") == []
    assert differences(module_with(slow), "slow", "def (a)") == ["slow: is a coroutine function"]


def test_differences_of_classes_are_found():
    from tinker_cookbook.rl import types

    entry = MODULES["tinker_cookbook.rl.types"]["Trajectory"]
    assert differences(types, "Trajectory", entry) == []
    changed = {
        "class": "chz",
        "bases": ["Env"],
        "members": {"final_ob": None, "transitions": None, "stop_reason": "''"},
    }
    found = "\n".join(differences(types, "Trajectory", changed))
    for words in ("derive from Env", "no chz class", "stop_reason defaults to None", "in the order"):
        assert words in found


def module_with(function) -> ModuleType:
    return SimpleNamespace(**{function.__name__: function})  # pyright: ignore[reportReturnType]
