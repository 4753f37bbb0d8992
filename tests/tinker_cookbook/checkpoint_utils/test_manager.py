"""When a checkpoint is saved, what it holds, and what becomes of the ones before."""

import asyncio
from typing import Any

import pytest

from tests.tinker_cookbook.checkpoint_utils.fakes import FakeServer, no_connection
from tinker_cookbook.checkpoint_utils import (
    CheckpointManager,
    CheckpointRecord,
    load_checkpoints_file,
    save_checkpoint,
    save_checkpoint_async,
)
from tinker_cookbook.exceptions import ConfigurationError
from tinker_cookbook.stores import TrainingRunStore


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Run:
    """A training loop over a fake server: `await run(5)` makes steps until `batch` is 5."""

    def __init__(self, log_path: str, server: FakeServer | None = None, **options: Any):
        self.log_path = log_path
        self.server = server or FakeServer()
        self.clock = Clock()
        self.manager = CheckpointManager(
            self.server.training, self.server.service, log_path, clock=self.clock, **options
        )
        self.batch = 0

    def play(self, until: int, tokens_per_batch: int = 0) -> None:
        """As `__call__`, and wait for what is under way, without ending the run."""

        async def work():
            await self(until, tokens_per_batch)
            await self.manager._settle()

        asyncio.run(work())

    async def __call__(self, until: int, tokens_per_batch: int = 0) -> None:
        while self.batch < until:
            await self.manager.maybe_save_async(
                self.batch, {"batch": self.batch}, elapsed_tokens=self.batch * tokens_per_batch
            )
            self.server.train()
            self.batch += 1
            await asyncio.sleep(0)

    @property
    def names(self) -> list[str]:
        return [record.name for record in self.records]

    @property
    def records(self) -> list[CheckpointRecord]:
        return load_checkpoints_file(self.log_path)


@pytest.fixture
def log(tmp_path) -> str:
    return str(tmp_path)


def assert_truthful(run: Run) -> None:
    """What each record says is the next batch is the number of steps that its weights have seen."""
    for record in run.records:
        for path in (record.state_path, record.sampler_path):
            if path in run.server.stored:
                assert run.server.stored[path] == record.batch


class TestPeriodic:
    def test_by_steps_but_never_at_zero(self, log):
        run = Run(log, save_every=3)
        asyncio.run(run(8))
        assert run.names == ["000003", "000006"]
        assert run.records[0].to_dict() == {
            "name": "000003",
            "batch": 3,
            "state_path": "tinker://run-1/weights/000003",
            "sampler_path": "tinker://run-1/sampler_weights/000003",
        }
        assert set(run.server.ttl.values()) == {604800}
        assert_truthful(run)

    def test_by_tokens(self, log):
        run = Run(log, save_every_tokens=25)
        asyncio.run(run(8, tokens_per_batch=10))
        assert run.names == ["000003", "000006"]
        assert run.records[1].get("elapsed_tokens") == 60

    def test_by_time(self, log):
        run = Run(log, save_every_seconds=60)

        async def play():
            await run(3)
            run.clock.now += 59
            await run(5)
            run.clock.now += 1
            await run(8)

        asyncio.run(play())
        assert run.names == ["000005"]

    def test_one_of_several_cadences_resets_the_others(self, log):
        run = Run(log, save_every=4, save_every_tokens=30)
        asyncio.run(run(8, tokens_per_batch=10))
        assert run.names == ["000003", "000004", "000007"]

    def test_tokens_are_counted_from_the_last_save_also_when_it_is_not_in_the_state(self, log):
        run = Run(log, save_every_tokens=25)
        assert run.manager.should_save_periodic(3, elapsed_tokens=30)
        run.manager.save_periodic(3, {"batch": 3})
        assert not run.manager.should_save_periodic(4, elapsed_tokens=40)
        assert run.manager.should_save_periodic(6, elapsed_tokens=55)

    def test_the_token_anchor_survives_a_resume(self, log):
        first = Run(log, save_every_tokens=25, rolling_save_every=1)
        first.play(6, tokens_per_batch=10)
        rolling = first.records[-1]
        assert (rolling.name, rolling.get("rolling")) == ("000005", True)
        second = Run(log, save_every_tokens=25)
        second.manager.resume_from(rolling)
        assert not second.manager.should_save_periodic(5, elapsed_tokens=50)
        assert second.manager.should_save_periodic(6, elapsed_tokens=60)
        second.manager.restore_last_saved_tokens(45)
        assert not second.manager.should_save_periodic(6, elapsed_tokens=60)

    def test_the_paths_come_back(self, log):
        run = Run(log, save_every=2)
        assert run.manager.maybe_save(1, {"batch": 1}) is None
        assert run.manager.maybe_save(2, {"batch": 2}) == {
            "state_path": "tinker://run-1/weights/000002",
            "sampler_path": "tinker://run-1/sampler_weights/000002",
        }

    def test_a_failure_is_raised_and_nothing_written_down(self, log):
        run = Run(log, save_every=1)
        run.server.broken = no_connection()
        with pytest.raises(type(run.server.broken)):
            run.manager.maybe_save(1, {"batch": 1})
        assert run.records == []


class TestPeriodicInBackground:
    def test_the_loop_goes_on_and_the_record_is_still_true(self, log):
        run = Run(log, save_every=3, async_periodic_saves=True)

        async def play():
            run.server.slow = asyncio.Event()
            await run(6)
            assert run.names == []
            run.server.slow.set()
            await run.manager.finalize_async()

        asyncio.run(play())
        assert run.names == ["000003"]
        assert len(run.server.stored) == 2
        assert_truthful(run)

    def test_order_is_kept_and_the_final_one_comes_last(self, log):
        run = Run(log, save_every=2, rolling_save_every=1, async_periodic_saves=True)

        async def play():
            await run(6)
            await run.manager.save_final_async({"batch": 6})

        asyncio.run(play())
        assert run.names == ["000001", "000002", "000003", "000004", "000005", "final"]
        assert [record.batch for record in run.records] == [1, 2, 3, 4, 5, 6]
        assert_truthful(run)

    def test_a_failure_is_raised_by_the_next_step(self, log):
        run = Run(log, save_every=2, async_periodic_saves=True)
        run.server.broken = no_connection()
        with pytest.raises(type(run.server.broken)):
            asyncio.run(run(5))
        assert run.batch == 3

    def test_a_failure_does_not_cost_the_final_checkpoint(self, log):
        run = Run(log, save_every=2, async_periodic_saves=True)

        async def play():
            run.server.broken = no_connection()
            await run(3)
            run.server.broken = None
            await run.manager.save_final_async({"batch": 3})

        with pytest.raises(type(no_connection())):
            asyncio.run(play())
        assert run.names == ["final"]

    def test_blocking_calls_leave_nothing_behind(self, log):
        run = Run(log, save_every=2, rolling_save_every=1, async_periodic_saves=True)
        for step in range(5):
            assert run.manager.maybe_save(step, {"batch": step}) is None
            run.server.train()
            assert len(run.records) == step
        run.server.broken = no_connection()
        run.manager.maybe_save(6, {"batch": 6})
        with pytest.raises(type(run.server.broken)):
            run.manager.maybe_save(7, {"batch": 7})


class TestRolling:
    def test_each_replaces_the_one_before(self, log):
        run = Run(log, rolling_save_every=1)
        run.play(4)
        assert run.names == ["000001", "000002", "000003"]
        assert list(run.server.stored) == ["tinker://run-1/weights/000003"]
        record = run.records[0]
        assert record.get("rolling") is True
        assert record.sampler_path is None
        assert run.server.ttl[record.state_path or ""] == 7200
        assert_truthful(run)

    @pytest.mark.parametrize(
        "cadence", [{"save_every": 4}, {"save_every_tokens": 40}, {"save_every_seconds": 4.0}]
    )
    def test_no_rolling_one_beside_any_periodic_one(self, log, cadence):
        run = Run(log, rolling_save_every=2, **cadence)

        async def play():
            for step in range(1, 7):
                run.clock.now += 1
                state = {"batch": step, "elapsed_tokens": step * 10}
                if run.manager.should_save_periodic(step, elapsed_tokens=step * 10):
                    await run.manager.maybe_save_rolling_async(step, state)  # asked before,
                    await run.manager.save_periodic_async(step, state)
                await run.manager.maybe_save_rolling_async(step, state)  # and after
                await run.manager.maybe_save_async(step, state, elapsed_tokens=step * 10)
            await run.manager.finalize_async()

        asyncio.run(play())
        rolling = {record.name for record in run.records if record.get("rolling", False)}
        assert rolling == {"000002", "000006"}
        assert "000004" in run.names

    def test_failures_are_logged_and_never_raised(self, log, caplog):
        run = Run(log, rolling_save_every=1)
        run.server.broken = no_connection()
        asyncio.run(run(4))
        assert run.records == []
        assert "could not save the rolling checkpoint" in caplog.text

    def test_a_refused_request_is_logged_too(self, log, caplog, monkeypatch):
        run = Run(log, rolling_save_every=1)

        async def refuse(*_: object, **__: object) -> None:
            raise no_connection()

        client = run.server.training
        monkeypatch.setattr(client, "save_state_async", refuse)
        manager = CheckpointManager(client, run.server.service, log, rolling_save_every=1)
        manager.maybe_save_rolling(1, {"batch": 1})
        assert "rolling checkpoint of step 1" in caplog.text

    def test_a_failed_save_does_not_delete_the_one_before(self, log):
        run = Run(log, rolling_save_every=1)
        run.manager.maybe_save(1, {"batch": 1})
        run.server.broken = no_connection()
        run.manager.maybe_save(2, {"batch": 2})
        run.server.broken = None
        assert list(run.server.stored) == ["tinker://run-1/weights/000001"]

    def test_the_leftover_of_a_crash_goes_when_the_next_process_has_saved_its_own(self, log):
        server = FakeServer()
        Run(log, server, rolling_save_every=2).play(5)
        leftover = "tinker://run-1/weights/000004"
        assert leftover in server.stored
        server.run = "run-2"
        second = Run(log, server, rolling_save_every=2)
        second.manager.maybe_save(5, {"batch": 5})
        assert leftover in server.stored
        second.manager.maybe_save(6, {"batch": 6})
        assert list(server.stored) == ["tinker://run-2/weights/000006"]

    def test_a_leftover_that_is_gone_is_no_trouble(self, log, caplog):
        TrainingRunStore.from_uri(log).write_checkpoint({"name": "1", "state_path": "gone", "rolling": True})
        run = Run(log, rolling_save_every=1)
        run.manager.maybe_save(1, {"batch": 1})
        assert not [record for record in caplog.records if record.levelname == "WARNING"]


class TestFinal:
    def test_kept_for_ever_and_marked(self, log):
        run = Run(log, rolling_save_every=1, save_every=10)

        async def play():
            await run(3)
            await run.manager.save_final_async({"batch": 3, "epoch": 1})

        asyncio.run(play())
        final = run.records[-1]
        assert (final.name, final.final, final.batch, final.epoch) == ("final", True, 3, 1)
        assert run.server.stored == {final.state_path: 3, final.sampler_path: 3}
        assert run.server.ttl[final.state_path or ""] is None

    def test_failures_are_raised(self, log):
        run = Run(log)
        run.server.broken = no_connection()
        with pytest.raises(type(run.server.broken)):
            run.manager.save_final({"batch": 1})

    def test_without_rolling_saves_nothing_is_deleted(self, log):
        TrainingRunStore.from_uri(log).write_checkpoint({"name": "1", "state_path": "s", "rolling": True})
        run = Run(log)
        run.server.stored["s"] = 1
        run.manager.finalize()
        assert "s" in run.server.stored


class TestSingleSaves:
    @pytest.mark.parametrize(
        ("kind", "keys"),
        [
            ("state", {"state_path"}),
            ("sampler", {"sampler_path"}),
            ("both", {"state_path", "sampler_path"}),
        ],
    )
    def test_kinds(self, log, kind, keys):
        paths = save_checkpoint(FakeServer().training, "mine", log, {"batch": 2, "note": "x"}, kind=kind)
        assert set(paths) == keys
        (record,) = load_checkpoints_file(log)
        assert record.to_dict() == {"name": "mine", "batch": 2, "note": "x", **paths}

    def test_into_a_store(self, tmp_path):
        store = TrainingRunStore.from_uri(str(tmp_path / "elsewhere"))
        log = str(tmp_path / "log")
        asyncio.run(save_checkpoint_async(FakeServer().training, "mine", log, {}, store=store))
        assert [record.name for record in store.read_checkpoint_records()] == ["mine"]
        assert not (tmp_path / "log").exists()

    def test_blocking_inside_a_loop_names_the_other_function(self, log):
        run = Run(log)

        async def inside():
            with pytest.raises(ConfigurationError, match=r"await save_checkpoint_async\("):
                save_checkpoint(run.server.training, "x", log, {})
            with pytest.raises(ConfigurationError, match=r"await save_final_async\("):
                run.manager.save_final({})

        asyncio.run(inside())
