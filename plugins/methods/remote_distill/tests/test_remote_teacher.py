"""A student and its teacher over a real connection: what is equal to a teacher beside it, what is refused, and what happens when
the teacher is late, dies, or is another one."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.toys.data import collate
from erniecore_conformance.toys.paddle_lm import toy_model
from erniecore_conformance.toys.tokenizer import ToyTokenizer
from erniecore_distill.cache import Cache
from erniecore_distill.chunked import Comparison, Head, compared
from erniecore_distill.opening import tokenizer_digest, vocabulary
from erniecore_distill.teachers import CachedTeacher, OnlineTeacher
from erniecore_remote_distill.config import RemoteDistillConfig
from erniecore_remote_distill.objective import RemoteDistillObjective
from erniecore_remote_distill.teacher import RemoteTeacher, keyed
from erniecore_sft.encoder import SftEncoder
from erniecore_wan.links import LinkEmulator, LinkQuality
from wan_sites import make_keyring
from wan_teachers import TeacherHost, facts_of

from erniecore.api import ConfigError, EnvironmentFault
from erniecore.api.data import Conversation, Message
from erniecore.api.method import IGNORE

WORDS = ("ant", "beetle", "cat", "dd", "eel")


def samples(*words):
    encoder = SftEncoder(ToyTokenizer(), 60)
    made = []
    for i, word in enumerate(words):
        made += encoder.encode(Conversation((Message("user", "Q" * (i + 1)), Message("assistant", word))))
    return made


@pytest.fixture(scope="module")
def keyring(tmp_path_factory):
    return make_keyring(tmp_path_factory.mktemp("keys"), ("teacher", "east", "west", "stranger"))


@pytest.fixture
def host(tmp_path, keyring):
    model = toy_model(1)
    made = TeacherHost(tmp_path / "teaching", model, facts_of(model, ToyTokenizer()), keyring)
    yield made
    made.stop()


@pytest.fixture
def student(tmp_path, keyring, host):
    """``student(name="east", **settings)``: a teacher as the student sees it, and the events of its run."""
    opened = []

    def make(name="east", port=None, begun=True, tokenizer=None, **changes):
        values = {
            "teacher_at": f"127.0.0.1:{port or host.port}", "key": str(keyring / f"{name}.key"),
            "certificate": str(keyring / "teacher.pem"), "top_k": 3, "temperature": 2.0, "timeout": 20.0,
        }  # fmt: skip
        config = RemoteDistillConfig(**values | changes)
        found = RemoteTeacher(config, tokenizer or tokenizer_digest(ToyTokenizer()), vocabulary(host.model))
        opened.append(found)
        events = []
        if begun:
            found.begin(tmp_path / name, lambda event, **fields: events.append({"event": event, **fields}))
        return SimpleNamespace(teacher=found, events=events, config=config)

    yield make
    for one in opened:
        one.client.close()


def arrays(top):
    return [top.ids.numpy(), top.log_p.numpy(), top.rest.numpy()]


def test_replies_have_the_bits_of_a_teacher_beside_the_student(tmp_path, host, student):
    made = samples(*WORDS)
    near = CachedTeacher(Cache(tmp_path / "near", {}), lambda: (host.model, True), top_k=3, temperature=2.0)
    far = student()
    teaching = far.teacher.teaching(collate([made[:3], made[3:]]), 2)
    for one, other in zip(arrays(teaching.top), arrays(near.teaching(collate([made]), 0)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert teaching.taught.numpy().all()
    assert [event["event"] for event in far.events] == ["teacher_joined"]


def test_every_sample_is_asked_about_once_also_by_the_next_session(tmp_path, host, student):
    made = samples(*WORDS)
    far = student()
    far.teacher.teaching(collate([made[:3]]), 0)
    far.teacher.teaching(collate([[one] for one in made], padding=3), 0)
    far.teacher.cache.flush()
    again = student()
    again.teacher.teaching(collate([made]), 0)
    assert (far.teacher.asked_samples, again.teacher.asked_samples) == (5, 0)
    assert again.teacher.client.received == 0
    assert host.service.students["east"].samples == 5


@pytest.mark.parametrize("divergence", ["forward-kl", "reverse-kl", "jsd"])
def test_all_but_one_token_are_the_whole_vocabulary(host, student, divergence):
    batch = collate([samples(*WORDS)])
    size = vocabulary(host.model)
    policy, comparison = toy_model(2), Comparison(divergence, 0.3, 2.0)
    (where,) = np.nonzero(batch.labels.reshape(-1) != IGNORE)
    labels = paddle.to_tensor(batch.labels.reshape(-1)[where])

    def loss_and_gradient(teaching):
        policy.clear_gradients()
        hidden = policy.features(
            paddle.to_tensor(batch.input_ids),
            position_ids=paddle.to_tensor(batch.position_ids),
            startend_row_indices=paddle.to_tensor(batch.startend_row_indices),
        ).hidden
        rows = hidden.reshape([-1, hidden.shape[-1]]).gather(paddle.to_tensor(where))
        _, divergences, agreed = compared(rows, Head(*policy.head()), labels, teaching, comparison)
        divergences.backward()
        gradients = [p.grad.numpy() for p in policy.parameters() if p.grad is not None]
        return float(divergences), float(agreed), gradients

    near = loss_and_gradient(OnlineTeacher(host.model, temperature=2.0).teaching(batch, 0))
    far = loss_and_gradient(student(top_k=size - 1).teacher.teaching(batch, 0))
    assert far[0] == pytest.approx(near[0], rel=1e-4)
    assert far[1] == near[1]
    for one, other in zip(far[2], near[2], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(other).max() + 1e-7)


def test_bytes_are_counted_on_both_sides(host, student):
    far = student(top_k=8)
    far.teacher.teaching(collate([samples(*WORDS)]), 0)
    client, known = far.teacher.client, host.service.students["east"]
    assert (client.sent, client.received) == (known.up, known.down)
    positions = far.teacher.asked_positions
    assert positions * 8 * 6 < client.received < positions * 8 * 6 + positions * 4 + 200
    far.teacher.leave()
    left = host.events("left")[0]
    assert (left["up"], left["down"], left["positions"]) == (client.sent, client.received, positions)
    assert host.service.done


def test_long_replies_are_divided_and_arrive_in_order(monkeypatch, host, student):
    monkeypatch.setattr("erniecore_remote_distill.teacher._REPLY", 1)
    made = samples(*WORDS)
    far = student()
    top = far.teacher.teaching(collate([made]), 0).top
    assert host.service.students["east"].questions == 5
    np.testing.assert_array_equal(top.ids.numpy(), student("west").teacher.teaching(collate([made]), 0).top.ids.numpy())


def test_a_teacher_that_died_behind_a_question_is_asked_again(host, student):
    made = samples(*WORDS)
    far = student()
    host.asleep = True
    found = []
    asking = threading.Thread(target=lambda: found.append(far.teacher.teaching(collate([made]), 0)))
    asking.start()
    while not host.service.students.get("east") or not host.service.students["east"].questions:
        time.sleep(0.01)
    host.stop()
    time.sleep(0.3)  # nobody is there
    host.asleep = False
    host.start(host.port)
    asking.join()
    assert found[0].taught.numpy().all()
    assert "the teacher is not reached" in next(e for e in far.events if e["event"] == "teacher_link")["reason"]


def test_cuts_changed_bytes_and_losses_change_no_bit(host, student):
    made = samples(*WORDS)
    straight = student("west").teacher.teaching(collate([made]), 0)
    link = LinkEmulator(("127.0.0.1", host.port), LinkQuality(rate=200_000, delay=0.01, jitter=0.005, loss=0.1))
    far = student(port=link.port)
    for number, one in enumerate(made):
        link.cut(0.05) if number % 2 else setattr(link, "flips", 1)
        far.teacher.teaching(collate([[one]]), 0)
    link.close()
    again = far.teacher.teaching(collate([made]), 0)
    for one, other in zip(arrays(again.top), arrays(straight.top), strict=True):
        np.testing.assert_array_equal(one, other)
    assert {event["kind"] for event in host.events("refused")} <= {"damaged"}


# ---- who is refused
def test_a_stranger_gets_no_reply(student):
    with pytest.raises(EnvironmentFault, match="refuses this student: stranger"):
        student("stranger")


def test_another_teacher_than_the_settings_name_is_refused(student):
    with pytest.raises(EnvironmentFault, match="another teacher than the one of this run"):
        student(fingerprint="others")


def test_a_teacher_with_other_weights_is_refused_by_a_run_that_goes_on(host, student):
    far = student()
    far.teacher.teaching(collate([samples("ant")]), 0)
    host.stop()
    host.facts = facts_of(host.model, ToyTokenizer(), fingerprint="others")
    host.start(host.port)
    with pytest.raises(EnvironmentFault, match="refuses this student: wrong-model"):
        far.teacher.teaching(collate([samples(*WORDS)]), 0)
    with pytest.raises(EnvironmentFault, match="another teacher than the one of this run"):
        student()
    assert host.events("refused")[-1]["kind"] == "wrong-model"


def test_another_tokenizer_is_refused_on_both_sides(host, student):
    with pytest.raises(ConfigError, match="tokenizer is not the student's"):
        student(tokenizer="other")
    far = student("west")
    far.teacher._tokenizer = "other"
    with pytest.raises(EnvironmentFault, match="wrong-tokenizer"):
        far.teacher.teaching(collate([samples("ant")]), 0)
    assert host.events("refused")[-1]["site"] == "west"


def test_no_more_tokens_leave_than_the_teacher_grants(host, student):
    host.stop()
    host.facts = facts_of(host.model, ToyTokenizer(), most=2)
    host.start(host.port)
    with pytest.raises(ConfigError, match="at most 2 tokens"):
        student()
    far = student(top_k=2)
    object.__setattr__(far.config, "top_k", 3)
    with pytest.raises(EnvironmentFault, match="too-large"):
        far.teacher.teaching(collate([samples("ant")]), 0)


def test_samples_that_are_too_long_and_floods_are_refused(host, student, monkeypatch):
    host.stop()
    host.facts = facts_of(host.model, ToyTokenizer(), longest=8)
    host.start(host.port)
    with pytest.raises(EnvironmentFault, match="at most 8"):
        student().teacher.teaching(collate([samples("ant")]), 0)
    host.stop()
    host.facts, host.asleep = facts_of(host.model, ToyTokenizer()), True
    host.start(host.port)
    monkeypatch.setattr("erniecore_remote_distill.service.MAX_WAITING", 1)
    monkeypatch.setattr("erniecore_remote_distill.teacher._REPLY", 1)
    with pytest.raises(EnvironmentFault, match="flood"):
        student("west").teacher.teaching(collate([samples(*WORDS)]), 0)


def test_a_reply_belongs_to_who_asked(host, student):
    east, west = student(), student("west")
    east.teacher.teaching(collate([samples("ant")]), 0)
    ((_, name),) = host.service._replies
    with pytest.raises(Exception, match="no such question"):
        west.teacher.client.download(f"/replies/{name}")


# ---- a late teacher
def objective_of(far):
    made = RemoteDistillObjective(far.config, toy_model(2), far.teacher)
    made.teller = None
    return made


def losses(objective, batch):
    output = objective(batch, objective.normalizers(batch))
    return float(output.loss), {name: (float(a), b) for name, (a, b) in output.metrics.items()}


def test_a_step_goes_on_without_a_teacher_that_is_late(host, student):
    made = samples(*WORDS)
    far = student(late="skip", patience=0.3, alpha=0.25)
    objective = objective_of(far)
    known = collate([made[:2]])
    objective.prepare([known], step=1, seed=0)
    whole = losses(objective, known)[1]
    assert whole["teacher/answered"][0] == whole["teacher/answered"][1]
    host.asleep = True
    both = collate([made[:3]])
    started = time.monotonic()
    assert objective.prepare([both], step=2, seed=0) == [both]
    assert time.monotonic() - started < 10
    loss, metrics = losses(objective, both)
    late = far.events[-1]
    assert (late["event"], late["step"], late["samples"]) == ("teacher_late", 2, 1)
    answered, learned = metrics["teacher/answered"]
    assert learned - answered == late["positions"]
    assert metrics["kl"][1] == answered
    # what has a reply is compared, and every label counts
    expected = 0.25 * 4 * metrics["kl"][0] + 0.75 * metrics["sft_loss"][0]
    assert loss * learned == pytest.approx(expected, rel=1e-5)
    assert metrics["kl"][0] == pytest.approx(whole["kl"][0], rel=1e-4)
    host.asleep = False
    objective.prepare([both], step=3, seed=0)
    assert losses(objective, both)[1]["teacher/answered"][0] == learned


def test_a_teacher_that_is_not_there_when_the_run_begins_may_come_later(host, student):
    host.stop()
    far = student(late="skip", patience=0.2)
    objective, batch = objective_of(far), collate([samples("ant")])
    objective.prepare([batch], step=1, seed=0)
    assert losses(objective, batch)[1]["teacher/answered"][0] == 0
    assert "teacher_link" in [event["event"] for event in far.events]
    host.start(host.port)
    objective.prepare([batch], step=2, seed=0)
    assert losses(objective, batch)[1]["teacher/answered"][0] > 0
    assert "teacher_joined" in [event["event"] for event in far.events]


def test_a_step_that_is_repeated_decides_as_before(tmp_path, host, student):
    from erniecore_remote_distill.decisions import Decisions

    path = tmp_path / "decisions.jsonl"
    made = samples(*WORDS)
    far = student(late="skip", patience=0.2)
    objective = objective_of(far)
    objective.decisions = Decisions(path)
    batches = [collate([made[:2]]), collate([made[2:]])]
    objective.prepare(batches[:1], step=1, seed=0)
    host.asleep = True
    objective.prepare(batches[1:], step=2, seed=0)
    assert len(objective.decisions.of(2)) == 3
    with path.open("a") as file:
        file.write('{"step": 3, "skip')  # the process died here
    host.asleep = False
    again = objective_of(student("west", late="skip", patience=0.2))
    again.decisions = Decisions(path)
    assert again.decisions.of(3) is None
    again.prepare(batches[:1], step=1, seed=0)
    assert not again.remote.skipped
    again.prepare(batches[1:], step=2, seed=0)
    assert again.remote.skipped == {key for key, _ in keyed(batches[1])}
    again.prepare(batches[1:], step=3, seed=0)
    assert not again.remote.skipped
    assert Decisions(path).of(3) == frozenset()


def test_a_decided_step_waits_for_what_it_had(tmp_path, host, student):
    """The teacher was there when the step was made; that it is late now changes nothing."""
    from erniecore_remote_distill.decisions import Decisions

    batch = collate([samples(*WORDS)])
    objective = objective_of(student(late="skip", patience=0.1))
    objective.decisions = Decisions(tmp_path / "decisions.jsonl")
    objective.decisions.add(1, ())
    host.asleep = True
    waker = threading.Timer(1.0, lambda: setattr(host, "asleep", False))
    waker.start()
    objective.prepare([batch], step=1, seed=0)
    assert not objective.remote.skipped
    assert losses(objective, batch)[1]["teacher/answered"][0] > 0


def test_a_student_waits_no_longer_than_its_timeout(host, student):
    host.stop()
    with pytest.raises(EnvironmentFault, match=r"the teacher was not reached for 0\.3 s"):
        student(timeout=0.3)
