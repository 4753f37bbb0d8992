"""What is sent to a compute process, before and after one dies; without arithmetic."""

import asyncio
import json

import pytest

from tests.tinker_engine.core.support import ME, answered, engine_with_fake_compute, new_run, until
from tinker_engine.backends.messages import SAMPLING, Failed, OpenRun, Running, Sample, Saved, Train
from tinker_engine.core.futures import LONG_BODY
from tinker_engine.core.training import AHEAD, MOST_ATTEMPTS, MOST_OPENINGS
from tinker_engine.errors import NotFoundError, WorkerLostError
from tinker_engine.model import tiny

FB, STEP = "forward_backward", "optim_step"


async def train(engine, run, *kinds):
    """Sends operations 1, 2, 3…; returns them."""
    return [await engine.train(ME, run, number, kind, b"body") for number, kind in enumerate(kinds, 1)]


async def save(engine, run, seq_id, name, **more):
    return await engine.save(ME, run, seq_id, "save_weights", "weights", name, identity=name.encode(), **more)


def test_only_a_few_operations_are_sent_ahead_and_the_rest_in_order(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            run = await new_run(engine, compute)
            ops = await train(engine, run, *[FB] * 10)
            assert [row[0] for row in compute.training[2:]] == ["1", "2", "3", "4"]
            assert AHEAD == 4
            for op in ops:
                compute.done(op.request_id)
                await answered(engine, op)
            assert [row[0] for row in compute.training[2:]] == [str(i) for i in range(1, 11)]

    asyncio.run(main())


def test_in_the_midst_of_an_accumulation_the_past_is_replayed_and_the_rest_goes_on(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            run = await new_run(engine, compute)
            ops = await train(engine, run, FB, STEP, FB, FB)
            for op in ops[:3]:
                compute.done(op.request_id)
                await answered(engine, op)
            compute.die(ops[3].request_id)
            await until(engine, lambda: len(compute.training) == 5)
            assert compute.training == [
                (run, "open", False),
                ("1", FB, True),
                ("2", STEP, True),
                ("3", FB, True),
                ("4", FB, False),
            ]
            compute.done(ops[3].request_id)
            await answered(engine, ops[3])
            assert ops[3].attempts == 1

    asyncio.run(main())


def test_an_answer_that_was_just_given_is_part_of_the_replay(tmp_path):
    """The worker may die before the answer is in the database."""

    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            run = await new_run(engine, compute)
            ops = await train(engine, run, FB, STEP)
            compute.done(ops[0].request_id)
            compute.die(ops[1].request_id)  # without a turn for the writer
            await until(engine, lambda: len(compute.training) == 3)
            assert compute.training[1:] == [("1", FB, True), ("2", STEP, False)]

    asyncio.run(main())


def test_a_save_is_not_made_again_while_it_is_being_recorded(tmp_path):
    """It would hold what came after it, under the name of what was."""

    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            run = await new_run(engine, compute)
            saving = await save(engine, run, 1, "a")
            step = await engine.train(ME, run, 2, STEP, b"{}")
            compute.done(saving.request_id, b"as it was")
            compute.die(step.request_id)
            await until(engine, lambda: len(compute.training) == 2)
            assert compute.training == [(run, "open", False), ("2", STEP, False)]
            await answered(engine, saving)
            found = engine.checkpoints.find(f"tinker://{run}/weights/a", ME)
            assert (engine.checkpoints.folder(found.id) / "weights").read_bytes() == b"as it was"

    asyncio.run(main())


def test_a_step_that_failed_is_replayed_as_a_dropped_gradient(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            run = await new_run(engine, compute)
            ops = await train(engine, run, FB, STEP, FB, STEP, FB)
            compute.done(ops[0].request_id)
            compute.say(Failed(ops[1].request_id, "not finite", "server"))
            compute.say(Failed(ops[2].request_id, "bad data", "user"))
            compute.say(Failed(ops[3].request_id, "a bad learning rate, so that nothing was begun", "user"))
            for op in ops[:4]:
                await answered(engine, op)
            compute.die(ops[4].request_id)
            await until(engine, lambda: len(compute.training) == 4)
            assert compute.training[1:] == [("1", FB, True), ("2", "drop_gradient", True), ("5", FB, False)]

    asyncio.run(main())


def test_after_a_restart_the_journal_goes_on_from_the_last_save(tmp_path):
    async def before():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            run = await new_run(engine, compute)
            ops = await train(engine, run, FB, STEP, FB, STEP)
            ops.append(await engine.train(ME, run, 5, FB, bytes(LONG_BODY + 1)))
            for op in ops[:3]:
                compute.done(op.request_id)
                await answered(engine, op)
            folder = tmp_path / "autosaves" / "saved"
            folder.mkdir(parents=True)
            (tmp_path / "autosaves" / "stale").mkdir()
            compute.say(Saved(run, ops[1].position, folder))
            await until(engine, lambda: engine.training.runs[run].saved_ref)
            return run

    async def after(run):
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            await until(engine, lambda: len(compute.training) == 4)
            opened = compute.sent[0]
            assert isinstance(opened, OpenRun)
            assert opened.state == tmp_path / "autosaves" / "saved"
            assert compute.training[1:] == [("3", FB, True), ("4", STEP, False), ("5", FB, False)]
            last = compute.sent[-1]
            assert isinstance(last, Train)
            assert len(last.body) == LONG_BODY + 1
            assert [path.name for path in (tmp_path / "autosaves").iterdir()] == ["saved"]

    asyncio.run(after(asyncio.run(before())))


def test_requests_made_after_old_ones_were_forgotten_are_replayed(tmp_path):
    """Saved and stopped, everything old forgotten, started twice: the new requests must count as new."""

    async def save_and_stop():
        async with engine_with_fake_compute(tmp_path, answer_seconds=-1e9) as (engine, compute):
            run = await new_run(engine, compute)
            ops = await train(engine, run, FB, STEP)
            for op in ops:
                compute.done(op.request_id)
                await answered(engine, op)
            (tmp_path / "autosaves" / "saved").mkdir(parents=True)
            compute.say(Saved(run, ops[1].position, tmp_path / "autosaves" / "saved"))
            await until(engine, lambda: engine.training.runs[run].saved_ref)
            await engine._remove_expired()
            assert await engine.futures.find(ops[1].request_id) in (None, ops[1])
            return run

    async def go_on(run):
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            op = await engine.train(ME, run, 3, FB, b"new")
            await until(engine, lambda: len(compute.training) == 2)
            compute.done(op.request_id)
            await answered(engine, op)
            compute.die()
            later = await engine.train(ME, run, 4, STEP, b"{}")
            await until(engine, lambda: len(compute.training) == 3)
            assert compute.training[1:] == [("3", FB, True), ("4", STEP, False)]
            assert later.position > op.position > engine.training.runs[run].saved_position

    asyncio.run(go_on(asyncio.run(save_and_stop())))


def test_a_request_that_kills_its_worker_fails_and_others_go_on(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            run, other = await new_run(engine, compute), await new_run(engine, compute, 1)
            poison = await engine.train(ME, run, 1, FB, b"poison")
            after = await engine.train(ME, run, 2, FB, b"good")
            beside = await engine.train(ME, other, 1, FB, b"good")
            for attempt in range(MOST_ATTEMPTS):
                await until(engine, lambda: poison.request_id in [getattr(m, "op", "") for m in compute.sent])
                compute.die(poison.request_id)
                assert poison.attempts == attempt + 1
                await until(engine, lambda n=attempt: compute.starts == n + 2)
            await answered(engine, poison)
            assert (poison.status, poison.category) == ("failed", "server")
            assert b"died 3 times of this request" in (poison.result or b"")
            for op in (after, beside):
                await until(engine, lambda o=op: o.request_id in [getattr(m, "op", "") for m in compute.sent])
                compute.done(op.request_id)
                assert (await answered(engine, op)).status == "done"
            assert (after.attempts, beside.attempts) == (0, 0)

    asyncio.run(main())


def test_attempts_are_remembered_over_a_restart_of_the_engine(tmp_path):
    async def once():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            if not engine.training.runs:
                await engine.train(ME, await new_run(engine, compute), 1, FB, b"poison")
            await until(engine, lambda: (compute.training or [("", "", True)])[-1][:2] == ("1", FB))
            run = next(iter(engine.training.runs))
            op = await engine.futures.find(f"{run}:1")
            assert op is not None
            compute.die(op.request_id)
            await engine.database.write(lambda _: None)
            return op.attempts, op.finished is not None

    assert [asyncio.run(once()) for _ in range(3)] == [(1, False), (2, False), (3, True)]


@pytest.mark.parametrize("at", ["opening", "replay"])
def test_a_run_that_cannot_be_brought_back_is_no_crash_loop(tmp_path, at):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            run = await new_run(engine, compute)
            past, op = await train(engine, run, FB, STEP)
            compute.done(past.request_id)
            await answered(engine, past)
            compute.die()
            for death in range(MOST_OPENINGS):
                assert not op.done
                await until(engine, lambda: len(compute.training) == 3)
                compute.die(run if at == "opening" else past.request_id)
                await until(engine, lambda n=death: compute.starts == n + 3)
            await answered(engine, op)
            assert b"while it brought back" in (op.result or b"")
            assert engine.training.runs[run].corrupted is None
            again = await engine.train(ME, run, 3, FB, b"body")
            await until(engine, lambda: compute.training and compute.training[-1] == ("3", FB, False))
            compute.done(again.request_id)
            await answered(engine, again)

    asyncio.run(main())


def test_a_replay_that_fails_corrupts_the_run_and_names_the_last_checkpoint(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            run = await new_run(engine, compute)
            saving = await save(engine, run, 1, "kept")
            compute.done(saving.request_id)
            await answered(engine, saving)
            op = await engine.train(ME, run, 2, FB, b"body")
            compute.say(Failed(f"{run}:0", "the autosave is damaged", "server", replay=True))
            await answered(engine, op)
            assert f"go on from tinker://{run}/weights/kept".encode() in (op.result or b"")
            later = await answered(engine, await engine.train(ME, run, 3, FB, b"body"))
            assert later.status == "failed"
            return run

    async def after(run):
        async with engine_with_fake_compute(tmp_path) as (engine, _):
            assert engine.training.runs[run].corrupted == "the autosave is damaged"

    asyncio.run(after(asyncio.run(main())))


def test_a_load_waits_for_the_save_before_it(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            run = await new_run(engine, compute)
            first = await save(engine, run, 1, "a")
            compute.done(first.request_id, b"one")
            await answered(engine, first)
            second = await save(engine, run, 2, "a", overwrite=True)
            load = await engine.load_weights(
                ME, run, 3, f"tinker://{run}/weights/a", optimizer=True, identity=b""
            )
            assert [row[0] for row in compute.training[2:]] == ["1", "2"]
            compute.done(second.request_id, b"two")
            await until(engine, lambda: compute.training[-1][0] == "3")
            message = compute.sent[-1]
            assert isinstance(message, Train)
            assert message.source is not None
            assert (message.source / "weights").read_bytes() == b"two"
            assert not load.done

    asyncio.run(main())


def test_an_unloaded_run_is_brought_back_by_its_next_request(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            run = await new_run(engine, compute)
            op = await engine.train(ME, run, 1, FB, b"body")
            unload = await engine.unload(ME, run, 2)
            assert not unload.done
            compute.done(op.request_id)
            await answered(engine, unload)
            await engine.train(ME, run, 3, STEP, b"{}")
            await until(engine, lambda: len(compute.training) == 7)
            assert compute.training[3:] == [
                (run, "close", False),
                (run, "open", False),
                ("1", FB, True),
                ("3", STEP, False),
            ]

    asyncio.run(main())


async def new_sampler(engine):
    session = await engine.create_session(ME, {})
    return await engine.create_sampler(ME, session.id, 0, tiny.NAME, None)


def test_samples_are_sent_again_with_the_seed_they_were_accepted_with(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            sampler = await new_sampler(engine)
            ops = [await engine.sample(ME, sampler.id, i, b"{}") for i in range(3)]
            before = [m for m in compute.sent if isinstance(m, Sample)]
            compute.done(ops[0].request_id)
            compute.die(SAMPLING)
            await until(engine, lambda: len(compute.sent) == 2)
            assert compute.sent == before[1:]
            for _ in range(MOST_ATTEMPTS - 1):
                compute.die(SAMPLING)
                await until(engine, lambda: compute.alive)
            for op in ops[1:]:
                assert (await answered(engine, op)).status == "failed"
            assert ops[0].status == "done"

    asyncio.run(main())


def test_a_worker_that_dies_of_training_costs_samples_no_attempt(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            sampler = await new_sampler(engine)
            op = await engine.sample(ME, sampler.id, 0, b"{}")
            for _ in range(2 * MOST_ATTEMPTS):
                compute.die("a:train:0:1")
                await until(engine, lambda: compute.sent)
            compute.done(op.request_id)
            assert (await answered(engine, op)).attempts == 0

    asyncio.run(main())


def test_a_cancelled_sample_fails_at_once(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            sampler = await new_sampler(engine)
            op = await engine.sample(ME, sampler.id, 0, b"{}")
            engine.sampling.cancel(op)
            engine.sampling.cancel(op)
            assert b"cancelled" in ((await answered(engine, op)).result or b"")
            assert [type(m).__name__ for m in compute.sent] == ["Sample", "Cancel"]
            assert engine.sampling.depth == 0

    asyncio.run(main())


def test_a_stream_ends_when_the_worker_dies_and_one_that_comes_meanwhile_is_served_by_the_next(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):

            async def first_event():
                return await anext(engine.stream(ME, tiny.NAME, None, {}, progress=True))

            first = asyncio.create_task(first_event())
            await until(engine, lambda: compute.sent)
            compute.alive = False
            second = asyncio.create_task(first_event())  # comes before the death is noticed…
            await asyncio.sleep(0)
            compute._on_end("SIGKILL")
            third = asyncio.create_task(first_event())  # …and this one after it
            for lost in (first, second):
                with pytest.raises(WorkerLostError):
                    await lost
            await until(engine, lambda: compute.sent)
            message = compute.sent[0]
            assert isinstance(message, Sample)
            compute.done(message.op, b"text")
            assert (await third).result == b"text"  # pyright: ignore[reportAttributeAccessIssue]
            with pytest.raises(NotFoundError):
                await anext(engine.stream(ME, tiny.NAME, "gone", {}, progress=True))
            assert engine.sampling.depth == 0

    asyncio.run(main())


def test_running_messages_alone_do_nothing(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            for message in (Running("x"), Running("a:b:c:9"), Saved("never", 3, tmp_path)):
                compute.say(message)
            compute.die("nobody:train:0:5")
            await until(engine, lambda: compute.starts == 2)
            assert engine.restarts == 1

    asyncio.run(main())


def test_a_repeated_unnamed_snapshot_keeps_its_first_session(tmp_path):
    async def main():
        async with engine_with_fake_compute(tmp_path) as (engine, compute):
            run = await new_run(engine, compute)

            def publish(number):
                return engine.save(
                    ME, run, 1, "save_sampler", "sampler_weights", None, sampler=number, identity=b""
                )

            first, again = await publish(0), await publish(7)
            assert again is first
            compute.done(first.request_id)
            answer = json.loads((await answered(engine, first)).result or b"")
            assert answer["sampling_session_id"].endswith(":sample:0")
            assert engine.sampling.find(answer["sampling_session_id"], ME)
            assert engine.checkpoints.named(ME) == []

    asyncio.run(main())
