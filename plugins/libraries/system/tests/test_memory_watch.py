"""The warning that the host's memory is nearly used up."""

from erniecore_system.memory import EVERY, HostMemory, MemoryWatch

GIB = 1 << 30


def watch(*available, limit=None):
    """What is warned of where so much is left at one look after the other."""
    said, left, now = [], iter(available), iter(range(0, 10**6, int(EVERY) + 1))
    watched = MemoryWatch(
        lambda *sizes: said.append(sizes), lambda: HostMemory(16 * GIB, next(left), limit), lambda: next(now)
    )
    for _ in available:
        watched.step()
    return said


def test_it_is_said_once_until_there_is_enough_again():
    low = GIB // 4
    assert watch(8 * GIB, GIB) == []
    assert len(watch(low, low, low)) == 1
    assert len(watch(low, GIB, low)) == 2
    assert watch(low) == [(low, 16 * GIB)]


def test_the_limit_of_a_container_is_the_whole():
    assert watch(GIB // 4, limit=4 * GIB) == []
    assert watch(GIB // 16, limit=4 * GIB) == [(GIB // 16, 4 * GIB)]


def test_between_two_looks_nothing_is_read():
    times = iter([0.0, 1.0, EVERY - 1])
    watched = MemoryWatch(print, iter([None]).__next__, lambda: next(times))
    for _ in range(3):
        watched.step()
