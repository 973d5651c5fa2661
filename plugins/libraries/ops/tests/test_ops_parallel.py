"""Worker threads: every item once, in order; errors come back; nesting and forks work."""

import multiprocessing

import paddle
import pytest
from erniecore_ops.parallel import num_workers, parallel_map, row_ranges

HERE = paddle.zeros([1])


def test_results_are_in_the_order_of_items(two_threads):
    assert num_workers() == 2
    assert parallel_map(lambda i: i * i, range(50), HERE) == [i * i for i in range(50)]


def test_an_error_reaches_the_caller(two_threads):
    def fail(i):
        raise ZeroDivisionError(i)

    with pytest.raises(ZeroDivisionError):
        parallel_map(fail, range(4), HERE)


def test_a_worker_may_call_an_operator_that_uses_workers(two_threads):
    inner = lambda i: sum(parallel_map(lambda j: i * j, range(5), HERE))  # noqa: E731
    assert parallel_map(inner, range(6), HERE) == [10 * i for i in range(6)]


def test_a_forked_child_gets_its_own_workers(two_threads):
    parallel_map(str, range(4), HERE)  # the parent's pool exists

    def child(queue):
        queue.put(parallel_map(lambda i: i + 1, range(4), HERE))

    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    result = queue.get(timeout=60)
    process.join()
    assert result == [1, 2, 3, 4]


@pytest.mark.parametrize(("num_rows", "width", "target"), [(10, 3, 7), (1, 1000, 1), (0, 4, 16), (64, 64, 1 << 18)])
def test_row_ranges_cover_every_row_once(num_rows, width, target):
    rows = [i for start, stop in row_ranges(num_rows, width, target) for i in range(start, stop)]
    assert rows == list(range(num_rows))
