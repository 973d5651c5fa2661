"""Derived seeds: stable values, independent purposes."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erniecore.engine.seed import derive_seed, seed_paddle


def test_value_is_part_of_the_checkpoint_contract():
    # changing the hash would break the exact continuation of older runs
    assert derive_seed(42, "step", 1) == 2585968407


@given(st.integers(0, 2**32 - 1), st.integers(0, 10**9))
def test_seed_fits_every_generator(seed, step):
    assert 0 <= derive_seed(seed, "step", step) < 2**32


def test_purposes_and_steps_do_not_share_streams():
    made = {derive_seed(seed, purpose, step) for seed in range(5) for purpose in ("a", "b") for step in range(50)}
    assert len(made) == 5 * 2 * 50


def test_digits_do_not_run_together():
    assert derive_seed(1, "p", 11) != derive_seed(11, "p", 1)


@pytest.mark.parametrize("arguments", [(1, "", 0), (1, "a/b", 0), (-1, "a", 0), (1, "a", -1)])
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(ValueError):
        derive_seed(*arguments)


def test_paddle_repeats_whatever_happened_before():
    import paddle

    seed_paddle(7, "step", 3)
    first = paddle.rand([8]).numpy()
    paddle.rand([1000])
    seed_paddle(7, "step", 3)
    assert (paddle.rand([8]).numpy() == first).all()


def test_importing_it_is_light():
    code = "import sys, erniecore.engine.seed; sys.exit('paddle' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
