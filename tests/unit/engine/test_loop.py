"""The loop on a toy run: events, skipped steps, stopping, continuing."""

import json

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_checkpoint.manifest import list_checkpoints
from erniecore_checkpoint.reader import load_checkpoint
from erniecore_conformance.toys.others import ToyDevice, ToyDevicePlugin
from erniecore_report.plugin import plugin as report

from erniecore.engine.arrays import to_numpy
from erniecore.engine.optimizers.state import state_arrays
from erniecore.engine.scoring.evaluate import evaluate
from erniecore.errors import ConfigError, DataError, NumericsError, Preempted
from erniecore.plugin import Plugin, hookimpl
from erniecore.types.run import Objective


def out_of(run):
    return run.context.out


def events(run, kind):
    lines = (out_of(run) / "events.jsonl").read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["event"] == kind]


def weights(run):
    return {name: to_numpy(tensor) for name, tensor in run.state.model.state_dict().items()}


def same(a, b):
    assert a.keys() == b.keys()
    return all(np.array_equal(a[name], b[name]) for name in a)


class Watcher(Plugin):
    """Calls functions at the start of steps."""

    kind, name, summary = "callback", "watcher", "for tests"

    def __init__(self, **at):
        self.at = at

    @hookimpl
    def ernie_step_start(self, run, step):
        if f"step_{step}" in self.at:
            self.at[f"step_{step}"](run)

    @hookimpl
    def ernie_collect_metrics(self, run, step):
        return {"watch/step": float(step)}


def watch(maker, **at):
    maker.plugins["callback"] = [*maker.plugins["callback"], Watcher(**at)]


def spoil(name="lm_head.weight"):
    """Makes the next backward pass give NaN for one parameter."""

    def act(view):
        parameter = dict(view.model.named_parameters())[name]
        once = []
        parameter.register_hook(lambda g: g if once or once.append(1) else g * float("nan"))

    return act


def test_training_lowers_the_loss_and_leaves_everything(maker):
    run = maker.finish(maker.run(train={"max_steps": 24, "batch_size": 8}))
    losses = [e["loss"] for e in events(run, "step")]
    assert losses[-1] < 0.5 * losses[0]
    assert [p.name for p in list_checkpoints(out_of(run) / "ckpt")] == ["step-00000024"]
    assert (out_of(run) / "model" / "config.json").exists()


def test_events_have_the_documented_fields(maker):
    run = maker.finish(maker.run(eval={"every": 2}, checkpoint={"every": 2}))
    kinds = [json.loads(line)["event"] for line in (out_of(run) / "events.jsonl").read_text().splitlines()]
    assert kinds[0] == "run_start"
    assert kinds[-1] == "run_end"
    step = events(run, "step")[0]
    assert {"step", "loss", "lr", "grad_norm", "tokens", "tokens_per_s", "seconds"} <= step.keys()
    assert [e["step"] for e in events(run, "step")] == [1, 2, 3, 4, 5, 6]
    assert [e["step"] for e in events(run, "eval")] == [2, 4, 6]
    assert [e["step"] for e in events(run, "checkpoint")] == [2, 4, 6]
    (end,) = events(run, "run_end")
    assert (end["status"], end["steps"]) == ("finished", 6)
    assert end["tokens"] == sum(e["tokens"] for e in events(run, "step"))


def test_metrics_of_callbacks_join_the_step(maker):
    watch(maker)
    run = maker.finish(maker.run())
    assert [e["watch/step"] for e in events(run, "step")] == [1, 2, 3, 4, 5, 6]


def test_accumulation_equals_one_large_batch(maker, tmp_path):
    one = maker.finish(maker.run(train={"batch_size": 8, "accumulation": 1}))
    maker.out = tmp_path / "other"
    four = maker.finish(maker.run(train={"batch_size": 2, "accumulation": 4}))
    for a, b in zip(events(one, "step"), events(four, "step"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-6)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-5)


def test_same_seed_same_weights_other_seed_others(maker, tmp_path):
    made = []
    for index, seed in enumerate((1, 1, 2)):
        maker.out = tmp_path / str(index)
        made.append(weights(maker.finish(maker.run(run={"seed": seed}))))
    assert same(made[0], made[1])
    assert not same(made[0], made[2])


def test_step_that_is_not_finite_changes_neither_weights_nor_moments(maker):
    watch(maker, step_1=spoil())
    run = maker.run(train={"max_steps": 1})
    before, moments = weights(run), state_arrays(run.state.optimizer)
    maker.finish(run)
    assert same(before, weights(run))
    assert same(moments, state_arrays(run.state.optimizer))
    assert run.state.optimizer.num_updates == 0
    (warning,) = (e for e in events(run, "warning") if e["kind"] == "numerics")
    assert warning["where"] == "lm_head.weight"
    assert all(sample.startswith("toy.jsonl:") for sample in warning["samples"])
    assert events(run, "step")[0]["skipped"] == 1


@pytest.mark.parametrize("name", ["embed_tokens.weight", "layers.0.mlp.up_proj.weight", "norm.bias"])
def test_every_position_is_guarded(maker, name):
    watch(maker, step_1=spoil(name))
    run = maker.run(train={"max_steps": 1})
    before = weights(run)
    maker.finish(run)
    assert same(before, weights(run))


def test_run_stops_after_too_many_skips_and_keeps_the_weights(maker):
    def poison(view):
        dict(view.model.named_parameters())["norm.weight"].register_hook(lambda g: g * float("inf"))

    watch(maker, step_3=poison)
    run = maker.run(train={"max_skips": 2})
    with pytest.raises(NumericsError, match="step 5"):
        maker.finish(run)
    assert [e.get("skipped") for e in events(run, "step")] == [None, None, 1, 1]
    (end,) = events(run, "run_end")
    assert end["status"] == "failed"
    assert all(np.isfinite(w).all() for w in weights(run).values())


def test_foreign_token_ids_stop_before_the_forward_pass(maker):
    from dataclasses import replace

    run = maker.run()
    dataset = run.data.train.dataset
    run.data.train.dataset = replace(dataset, input_ids=dataset.input_ids + 10_000)
    with pytest.raises(DataError) as caught:
        maker.finish(run)
    assert "toy.jsonl:" in caught.value.where
    assert events(run, "step") == []


def test_request_to_stop_finishes_the_step_and_saves(maker):
    watch(maker, step_3=lambda view: (view.out / "control" / "stop").touch())
    run = maker.run()
    with pytest.raises(Preempted):
        maker.finish(run)
    assert run.state.step == 3
    assert not (out_of(run) / "control" / "stop").exists()
    assert load_checkpoint(list_checkpoints(out_of(run) / "ckpt")[-1]).step == 3
    (end,) = events(run, "run_end")
    assert end["status"] == "preempted"


@pytest.mark.parametrize("extra", [{}, {"ema": 0.9}, {"optimizer": {"moments": "bfloat16"}, "accumulation": 3}])
@pytest.mark.parametrize("at", [1, 4, 8, 11])
def test_continued_run_is_bit_equal(maker, tmp_path, at, extra):
    train = {"max_steps": 12, "schedule": "cosine-with-restarts", "cycles": 3, "warmup_steps": 3, **extra}
    optimizer = train.pop("optimizer", {})
    straight = maker.finish(maker.run(train=train, optimizer=optimizer))
    maker.out = tmp_path / "broken"
    watch(maker, **{f"step_{at}": lambda view: (view.out / "control" / "stop").touch()})
    with pytest.raises(Preempted):
        maker.finish(maker.run(train=train, optimizer=optimizer))
    maker.plugins["callback"].pop()
    paddle.rand([17])  # other random numbers drawn in between must not matter
    continued = maker.finish(maker.run(train=train, optimizer=optimizer))
    assert same(weights(straight), weights(continued))
    assert same(state_arrays(straight.state.optimizer), state_arrays(continued.state.optimizer))
    if straight.state.ema is not None:
        assert same(straight.state.ema.state_arrays(), continued.state.ema.state_arrays())
    pairs = [
        {e["step"]: (e["loss"], e["grad_norm"], e["lr"]) for e in events(r, "step")} for r in (straight, continued)
    ]
    assert pairs[0] == pairs[1]
    assert straight.state.tokens == continued.state.tokens


def test_continuing_a_finished_run_trains_no_further(maker):
    first = maker.finish(maker.run())
    again = maker.finish(maker.run())
    assert len(events(again, "step")) == 6
    assert same(weights(first), weights(again))


def test_evaluation_uses_the_average_and_leaves_no_trace(maker, tmp_path):
    plain = maker.finish(maker.run(train={"ema": 0.9}))
    maker.out = tmp_path / "other"
    often = maker.finish(maker.run(train={"ema": 0.9}, eval={"every": 1}))
    assert same(weights(plain), weights(often))
    with often.state.ema.applied():
        (step, *_, last) = events(often, "eval")
        averaged = evaluate(often.state.objective, often.state.model, often.data.eval_batches())
    assert last["loss"] == pytest.approx(averaged["loss"])
    assert step["step"] == 1


def test_exported_weights_are_the_average(maker):
    from safetensors.numpy import load_file

    run = maker.finish(maker.run(train={"ema": 0.5}))
    written = load_file(out_of(run) / "model" / "model.safetensors")
    assert np.array_equal(written["toy.norm.weight"], run.state.ema.state_arrays()["norm.weight"])


def test_clipping_bounds_what_the_optimizer_sees(maker):
    run = maker.run(train={"max_steps": 1, "max_grad_norm": 1e-3}, optimizer={"beta1": 0.0})
    maker.finish(run)
    seen = sum((a**2).sum() for n, a in state_arrays(run.state.optimizer).items() if n.endswith(".first"))
    assert seen**0.5 == pytest.approx(1e-3, rel=1e-4)
    assert events(run, "step")[0]["grad_norm"] > 1e-3


def test_checkpoint_that_was_just_written_is_not_written_again(maker):
    run = maker.run()
    assert run.saver.save(run.state) == run.saver.save(run.state)
    assert len(events(run, "checkpoint")) == 1


@pytest.mark.parametrize(
    ("train", "key"),
    [
        ({"precision": "bfloat16"}, "train.precision"),
        ({"schedule": "constant", "warmup_steps": 3}, "train.schedule"),
        ({"schedule": "cosine", "cycles": 2}, "train.cycles"),
        ({"min_lr": 1.0}, "train.min_lr"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_made(maker, train, key):
    with pytest.raises(ConfigError, match=key):
        maker.ready(train=train)
    assert not maker.out.exists()


class Restless(ToyDevicePlugin):
    """A device whose results do not repeat."""

    @hookimpl
    def ernie_open_device(self):
        device = ToyDevice()
        device.deterministic = False
        return device


def test_a_device_that_does_not_repeat_is_refused(maker):
    maker.plugins["device"] = Restless()
    with pytest.raises(ConfigError, match=r"run\.deterministic: device toy .* set it to false"):
        maker.ready()
    assert not maker.out.exists()


def test_a_device_that_does_not_repeat_is_taken_when_nobody_asks_for_it(maker):
    maker.plugins["device"] = Restless()
    assert not maker.ready(run={"deterministic": False}).device.deterministic


def test_a_report_that_cannot_be_written_leaves_the_run_finished(maker):
    maker.plugins["callback"].append(report)
    run = maker.run()
    (out_of(run) / "report.html").mkdir(parents=True)
    maker.finish(run)
    assert events(run, "run_end")[-1]["status"] == "finished"
    (warning,) = (event for event in events(run, "warning") if event["kind"] == "report")
    assert "Is a directory; `ernie runs report" in warning["message"]


def test_error_at_the_end_does_not_hide_the_error_of_the_run(maker):
    class Broken(Plugin):
        kind, name, summary = "callback", "broken", "for tests"

        @hookimpl
        def ernie_step_end(self, step):
            raise KeyError("first")

        @hookimpl
        def ernie_run_end(self):
            raise ValueError("second")

    maker.plugins["callback"] = [*maker.plugins["callback"], Broken()]
    with pytest.raises(KeyError, match="first"):
        maker.finish(maker.run())


def test_step_without_anything_to_learn_has_no_loss_and_goes_on(maker):
    from dataclasses import replace

    run = maker.run(train={"max_steps": 2, "batch_size": 8})
    dataset = run.data.train.dataset
    run.data.train.dataset = replace(dataset, labels=np.full_like(dataset.labels, -100))
    watch(maker)
    run.state.objective = NothingLearned(run.state.objective)
    maker.finish(run)
    assert [e["loss"] for e in events(run, "step")] == [None, None]


class NothingLearned(Objective):
    """Divides by at least one token."""

    def __init__(self, inner):
        self.inner = inner

    def normalizers(self, batch):
        return self.inner.normalizers(batch)

    def __call__(self, batch, totals):
        return self.inner(batch, {"tokens": max(totals["tokens"], 1.0)})


def test_plugin_can_replace_forward_and_backward(maker):
    class Counting(Plugin):
        kind, name, summary = "callback", "counting", "for tests"

        @hookimpl
        def ernie_forward_backward(self, run, batches):
            from erniecore.engine.step import forward_backward

            seen.append(len(batches))
            return forward_backward(run.objective, batches)

    seen = []
    maker.plugins["callback"] = [*maker.plugins["callback"], Counting()]
    maker.finish(maker.run(train={"max_steps": 3, "accumulation": 2}))
    assert seen == [2, 2, 2]


def test_reference_is_the_initial_model_and_stays_so(maker):
    from erniecore_conformance.toys.method import ToyReferencePlugin

    maker.plugins["method"] = ToyReferencePlugin()
    run = maker.run()
    before = weights(run)
    maker.finish(run)
    reference = {name: to_numpy(tensor) for name, tensor in run.state.objective.reference.state_dict().items()}
    assert same(before, reference)
    assert not same(before, weights(run))
    assert all(p.grad is None for p in run.state.objective.reference.parameters())


def test_adapter_checkpoints_hold_the_trained_weights_only_and_continue(maker, tmp_path):
    from erniecore_conformance.toys.changes import adapter

    maker.plugins["adapter"] = adapter
    straight = maker.finish(maker.run())
    maker.out = tmp_path / "broken"
    watch(maker, step_3=lambda view: (view.out / "control" / "stop").touch())
    with pytest.raises(Preempted):
        maker.finish(maker.run())
    maker.plugins["callback"].pop()
    continued = maker.finish(maker.run())
    assert same(weights(straight), weights(continued))
    trained = {name for name, p in straight.state.model.named_parameters() if not p.stop_gradient}
    saved = load_checkpoint(list_checkpoints(out_of(continued) / "ckpt")[-1]).tensors["model"]
    assert set(saved) == trained
    assert len(trained) < len(weights(straight))


def test_factors_of_a_model_reach_the_optimizer(maker):
    real = maker.plugins["model"]

    class Scaled(type(real)):
        @hookimpl
        def ernie_build_model(self, architecture, dtype):
            model = super().ernie_build_model(architecture, dtype)
            model.lr_factors = {"lm_head.*": 16.0}
            return model

    maker.plugins["model"] = Scaled()
    factors = {slot.name: slot.given.factor for slot in maker.run().state.optimizer.slots}
    assert factors.pop("lm_head.weight") == 16.0
    assert set(factors.values()) == {1.0}
