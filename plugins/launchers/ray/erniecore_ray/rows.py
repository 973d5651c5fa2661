"""Rows of data files are encoded on a Ray cluster, by Ray Data: this process reads the files and joins what comes back, in
order, so that the result is that of one process. Nodes need the same installation, and no files but those that rows name.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

from erniecore.api import EnvironmentFault
from erniecore_ray.cluster import join

#: blocks per processor: the last ones to end are small
_BLOCKS = 4


class RayPool:
    """Does work on the processors of a cluster; a ``Pool`` of ``erniecore.api.rows``.

    Args:
        address: of the cluster; ``auto``: the one of this machine, or ``$RAY_ADDRESS``.
        at_a_time: items that are in the cluster at a time; chunks of rows have up to a MiB each.
    """

    def __init__(self, address: str, at_a_time: int = 256) -> None:
        self.address, self.at_a_time = address, at_a_time

    def __call__(self, work: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any]) -> Iterator[Any]:
        """``work(shared, item)`` of every item, in order. A task that is lost with its node is done again. Meanwhile what is
        printed goes to stderr: Ray prints on stdout what it has lost, where commands print their result.

        Raises:
            EnvironmentFault: there is no cluster, or it lost too much. Exception: what ``work`` raises.
        """
        ray = join(self.address, f"--ray {self.address}", "--ray")
        kept, sys.stdout = sys.stdout, sys.stderr
        try:
            from ray import data

            logging.getLogger("ray.data").setLevel(logging.ERROR)
            context = data.DataContext.get_current()
            context.enable_progress_bars = False
            context.execution_options.preserve_order = True
            blocks = max(1, int(_BLOCKS * ray.cluster_resources().get("CPU", 1)))
            encode, rest = Encode(ray.put((work, shared))), iter(items)
            while window := [{"item": Boxed(item)} for item in islice(rest, self.at_a_time)]:
                try:
                    found = data.from_items(window, override_num_blocks=min(blocks, len(window))).map(encode)
                    for row in found.iter_rows():
                        done, result = row["result"].value
                        if not done:
                            raise result
                        yield result
                except ray.exceptions.RayError as error:
                    raise EnvironmentFault(
                        "Ray lost what encodes rows", where=f"--ray {self.address}", found=str(error).splitlines()[-1],
                        fix="look at the nodes and their logs; without --ray this process encodes", code="ERN-E020",
                    ) from error  # fmt: skip
        finally:
            ray.shutdown()
            sys.stdout = kept


class Boxed:
    """A value that Ray Data hands on as it is: tuples and arrays it would make columns of."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Encode:
    """What a task does with one item. ``reference``: to the work and what all items share."""

    def __init__(self, reference: Any) -> None:
        self.references = [reference]  # in a list, so that Ray hands on the reference and not what it refers to

    def __call__(self, row: dict[str, Boxed]) -> dict[str, Boxed]:
        """``item`` -> ``result``: whether the work was done, and its result or what it raised."""
        work, shared = opened(self.references[0])
        try:
            return {"result": Boxed((True, work(shared, row["item"].value)))}
        except Exception as error:
            return {"result": Boxed((False, error))}


@lru_cache(maxsize=1)
def opened(reference: Any) -> Any:
    """What ``reference`` refers to; a process opens it once."""
    import ray

    return ray.get(reference)
