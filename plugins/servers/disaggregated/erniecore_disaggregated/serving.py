"""The process that serves: HTTP and routes are those of the server ``openai``, and the router stands where its engine does.
The model is read by the processes alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from erniecore_openai.constraints import Vocabulary
from erniecore_openai.serving import model_name, serve_model
from erniecore_openai.state import ServedModel, Serving
from fastapi import FastAPI

from erniecore.api import UsageError
from erniecore.api.command import open_tokenizer
from erniecore_disaggregated.admin import add_admin
from erniecore_disaggregated.config import DisaggregatedConfig
from erniecore_disaggregated.metrics import ClusterMetrics
from erniecore_disaggregated.router import Router


def serve(settings: DisaggregatedConfig, directory: Path) -> int:
    """Serve the model in ``directory`` until a signal; returns the exit code.

    Raises:
        UsageError: no model, an address that needs a key, bits that may differ. EnvironmentFault: an address that cannot be
            listened on, a process that does not start.
    """
    check_settings(settings)
    router = Router(settings, directory)

    def extend(app: FastAPI, serving: Serving, key: str) -> None:
        serving.metrics.register(ClusterMetrics(router))
        add_admin(app, router, keyed=bool(key))

    return serve_model(settings, directory, lambda: started(settings, directory, router), extend)


def check_settings(settings: DisaggregatedConfig) -> None:
    """Raise ``UsageError`` for settings with which a second try could differ from the first one, or that need Linux."""
    if settings.transport == "shared_memory" and sys.platform != "linux":
        raise UsageError(
            "shared memory without a name needs Linux", where="transport", found=sys.platform, fix="transport=tcp"
        )
    if not settings.invariant:
        raise UsageError(
            "processes have to compute the same bits", where="invariant", found="false", fix="leave it out",
        )  # fmt: skip


def started(settings: DisaggregatedConfig, directory: Path, router: Router) -> ServedModel:
    """The model as the routes know it, with the router as its engine, whose processes take requests."""
    router.start()
    told = router.description
    tokenizer, size = open_tokenizer(directory)
    vocab_size = told["vocab_size"] or size
    return ServedModel(
        name=settings.name or model_name(directory), engine=router, tokenizer=tokenizer,
        stop_ids=frozenset(told["stop_ids"]), generation=told["generation"], context=told["context"],
        vocab_size=vocab_size, vocabulary=Vocabulary(tokenizer, vocab_size),
    )  # fmt: skip
