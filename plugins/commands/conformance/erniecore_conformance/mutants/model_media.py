"""Models with media with one thing wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from erniecore_conformance.mutants.mutant import mutant
from erniecore_conformance.toys.seeing import ToySeeingPlugin

if TYPE_CHECKING:
    from erniecore.api.testing import Tensor


class Blind(ToySeeingPlugin):
    """Checks its images, and does not look at them."""

    def change(self, model: Any) -> None:
        put = model.put
        model.put = lambda x, places, images: put(x, places, images * 0)


class Early(ToySeeingPlugin):
    """Every token sees the mean of all images."""

    def change(self, model: Any) -> None:
        put = model.put

        def put_twice(x_BSH: Tensor, places: Tensor, images: Tensor) -> Tensor:
            return put(x_BSH, places, images) + images.mean(axis=0)

        model.put = put_twice


class Mixed(ToySeeingPlugin):
    """The images of a batch come in the opposite order."""

    def change(self, model: Any) -> None:
        put = model.put
        model.put = lambda x, places, images: put(x, places, images.flip([0]))


class Lenient(ToySeeingPlugin):
    """Takes as many images as it needs, and leaves placeholders that have none."""

    def change(self, model: Any) -> None:
        put = model.put

        def put_some(x_BSH: Tensor, places: Tensor, images: Tensor) -> Tensor:
            count = min(len(places), len(images))
            return put(x_BSH, places[:count], images[:count])

        model.put = put_some


class Unchecked(ToySeeingPlugin):
    """Says of images that do not fit what a library says."""

    def change(self, model: Any) -> None:
        put = model.put

        def fail(x_BSH: Tensor, places: Tensor, images: Tensor) -> Tensor:
            if len(places) != len(images):
                raise IndexError("out of range")
            return put(x_BSH, places, images)

        model.put = fail


MUTANTS = (
    mutant("model_attends_to_its_media", Blind, also=("model_gradients_reach_everything",)),
    mutant("model_attends_to_its_media", Early, also=("model_media_belong_to_their_rows",)),
    mutant("model_media_belong_to_their_rows", Mixed),
    mutant("model_refuses_media_that_do_not_fit", Lenient),
    mutant("model_refuses_media_that_do_not_fit", Unchecked),
)
