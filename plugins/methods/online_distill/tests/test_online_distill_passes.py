"""Passes of the teacher are counted: there are as many as without students, and its gradient has the same bits."""

import numpy as np
import paddle  # noqa: TID253
import pytest
from erniecore_conformance.toys.data import collate
from erniecore_model_init.new_model import init_model
from erniecore_online_distill.config import OnlineDistillConfig
from erniecore_online_distill.objective import OnlineDistillObjective
from erniecore_online_distill.students import open_students
from erniecore_text.training import train

from erniecore.api.method import Sample
from erniecore.api.run import open_model

SIZES = {
    "teacher": "hidden_size=16,intermediate_size=32,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=1,head_dim=4",
    "small": "hidden_size=8,intermediate_size=16,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=1,head_dim=4",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    home = tmp_path_factory.mktemp("passes")
    (home / "tok").mkdir()
    train(["the quick brown fox jumps over the lazy dog 0123456789"] * 20, 340).save(home / "tok")
    for name, size in SIZES.items():
        init_model("ernie45", size, home / "tok", home / name, seed_value=1)
    return home


def batch(seed, rows=2, length=7):
    made = []
    for row in range(rows):
        ids = np.random.default_rng(10 * seed + row).integers(3, 300, length + 1)
        made.append([Sample(ids[:-1], ids[1:], np.arange(length), np.full(length, length, np.int32))])
    return collate(made)


def counted(model, passes, name):
    model.model.register_forward_pre_hook(lambda layer, inputs: passes.append(name))


def step(models, students, **changes):
    """Names of the models that have computed, in order, and the teacher's gradient, over two micro-batches and an update."""
    bundle = open_model(models / "teacher")
    teacher, passes = bundle.model, []
    teacher.train()
    config = OnlineDistillConfig(students={name: str(models / "small") for name in students}, **changes)
    learning = open_students(config, teacher, bundle.tokenizer)
    counted(teacher, passes, "teacher")
    for student in learning:
        counted(student.model, passes, student.name)
    objective = OnlineDistillObjective(config, teacher, learning)
    batches = objective.prepare([batch(1), batch(2)], step=1, seed=0)
    totals = {}
    for one in batches:
        for name, value in objective.normalizers(one).items():
            totals[name] = totals.get(name, 0.0) + value
    for one in batches:
        objective(one, totals).loss.backward()
    objective.after_step(step=1, rate=1e-3)
    return passes, {name: p.grad.numpy() for name, p in teacher.named_parameters()}


def test_one_pass_of_the_teacher_serves_all_students(models):
    alone, expected = step(models, ())
    assert alone == ["teacher"] * 2
    passes, gradient = step(models, ("one", "two", "three"))
    assert passes == ["teacher", "one", "two", "three"] * 2
    for name, value in expected.items():
        np.testing.assert_array_equal(gradient[name], value, err_msg=name)


def test_with_an_assistant_there_is_one_pass_more_and_none_of_the_teacher(models):
    passes, _ = step(models, ("one",), assistant=str(models / "small"))
    assert passes == ["teacher", "assistant", "one"] * 2


def test_the_auxiliary_layer_costs_no_pass(models):
    assert step(models, ("one",), auxiliary_layer=False)[0] == step(models, ("one",))[0] == ["teacher", "one"] * 2


def test_no_gradient_of_a_student_is_left_on_the_teacher(models):
    """Also where the students alone have a loss: what they learn from has no gradient."""
    teacher = open_model(models / "teacher")
    config = OnlineDistillConfig(students={"one": str(models / "small")})
    objective = OnlineDistillObjective(config, teacher.model, open_students(config, teacher.model, teacher.tokenizer))
    teacher.model.train()
    one = batch(3)
    objective(one, objective.normalizers(one))
    assert all(p.grad is None for p in teacher.model.parameters())
    assert any(float(paddle.abs(g).sum()) > 0 for _, g in objective.students[0].optimizer.gradients())
