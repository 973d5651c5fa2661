"""A site's side of the exchange: when it begins, what is sent, what becomes of the weights, and what happens when the site is
late, comes back or joins. All ranks of the site call the methods together; rank 0 decides and talks to the coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np

from erniecore.api import EnvironmentFault
from erniecore.api.parallel import ParameterState, ProcessGroup
from erniecore_wan.arrays import AnyArray, Vector
from erniecore_wan.base_model import base_digest
from erniecore_wan.client import CoordinatorClient
from erniecore_wan.config import WanConfig
from erniecore_wan.fragments import Fragment, digest_of, fragments_of, selected, vector_digest
from erniecore_wan.keys import shared_secrets
from erniecore_wan.memory import Memory, MemoryFiles, Sent
from erniecore_wan.outer import mixed
from erniecore_wan.payload import (
    ELEMENT_BYTES,
    Form,
    Header,
    PayloadRefused,
    dense_body,
    pack,
    unpack,
    vector_of,
    words_of,
)
from erniecore_wan.rounds import Result, Terms, merge, merge_sum
from erniecore_wan.sparse import with_feedback
from erniecore_wan.store import read_anchor
from erniecore_wan.transfer import Masker, Outcome, Transfer
from erniecore_wan.weights import SiteWeights

#: seconds between two looks at an exchange that the site waits for; it tells the run each time that it lives
_LOOK = 0.5


class SiteRounds:
    """One site.

    Args:
        ranks: of the strategy within the site.

    Attributes:
        waiting: what the site is waiting for; empty: nothing.
    """

    def __init__(self, config: WanConfig, ranks: ProcessGroup) -> None:
        self._config, self._ranks, self._is_main = config, ranks, ranks.rank == 0
        self._slots: Sequence[ParameterState] = ()
        self._client: CoordinatorClient | None = None
        self._transfer: Transfer | None = None
        self._memory, self._name = Memory(), Path(config.key).stem
        self._last_step, self._seconds, self._loss = 0, 0.0, 0.0
        self._complaints: list[str] = []
        self.waiting = ""

    def attach(self, slots: Sequence[ParameterState]) -> None:
        """The trained parameters of this rank."""
        self._slots = slots

    def metrics(self) -> dict[str, float]:
        """Bytes of updates and anchors so far, on rank 0."""
        client = self._client
        return {"wan/sent": client.sent, "wan/received": client.received} if client is not None else {}

    # ---- begin and end
    def start(self, run: Any) -> None:
        """Join, and go on where the checkpoint was; before the first step."""
        config = self._config
        moved = dict(run.model.named_parameters())
        moved = {name: moved[name] for name in (selected(list(moved), config.averaged) if config.averaged else ())}
        self._weights = SiteWeights(self._ranks, self._slots, config.payload, moved)
        self._fragments = fragments_of(self._weights.shapes, config.fragments)
        self._files, self._last_step = MemoryFiles(run.out), run.step
        joined: dict[str, Any] = {}
        if self._is_main:
            self._terms = self._make_terms(run)
            key, certificate = Path(config.key), Path(config.certificate)
            self._client = CoordinatorClient(
                config.coordinator, key, certificate, config.timeout, self._complaints.append
            )
            joined = self._join(run)
        if not self._restore(run, run.step):
            self._begin_anew(run, joined)

    def _make_terms(self, run: Any) -> Terms:
        config, model = self._config, run.settings.model
        values = {
            "model": base_digest(model.path, model.architecture, run.settings.run.seed),
            "parameters": digest_of(self._weights.shapes),
            "sizes": [fragment.size for fragment in self._fragments],
            "averaged": [fragment.ranges(self._weights.averaged) for fragment in self._fragments],
            "outer": asdict(config.outer_rule),
            **config.model_dump(include={"clip", "adaptive", "overhead", "cap", "form", "k", "chunk", "secure"}),
        }
        return Terms(values)

    def _join(self, run: Any) -> dict[str, Any]:
        """What the coordinator knows. Raises ``EnvironmentFault`` where it does not let this site in."""
        try:
            found = self._connected.join(self._terms)
        except PayloadRefused as error:
            raise EnvironmentFault(
                f"the coordinator does not let this site in: {error.kind}",
                where=f"site {self._name}",
                found=str(error),
                fix="all sites need the same base model, the same trained parameters and the same settings of the exchange",
            ) from error
        run.emit("wan_joined", site=self._name, round=found["round"], step=run.step)
        return found

    @property
    def _connected(self) -> CoordinatorClient:
        assert self._client is not None
        return self._client

    def _told(self, value: Any) -> Any:
        """What rank 0 says, on all ranks."""
        return self._ranks.all_gather_object(value if self._is_main else None)[0]

    def _restore(self, run: Any, step: int) -> bool:
        """Whether this site goes on from what it remembers of ``step``."""
        found = self._files.read(step) if self._is_main else None
        if not self._told(found is not None):
            return False
        self._memory = found or self._memory
        if self._memory.sent is not None:
            self._transfer = self._transfer_of(self._memory.sent)
        if step == 0:  # no checkpoint holds what the anchor was
            self._apply(dict(enumerate(self._memory.anchors)))
        if self._told(self._finish_is_due(step, last=step == run.total_steps)):
            self._finish(run, step)
        return True

    def _begin_anew(self, run: Any, joined: dict[str, Any]) -> None:
        """The first site brings its weights as the anchor; the others take that of the run."""
        config = self._config
        first = self._told(bool(joined.get("first")))
        if first:
            own = [self._gathered(i) for i in range(len(self._fragments))]
            if self._is_main:
                self._connected.put_anchor(own)
                self._memory = Memory(joined["round"], run.step, config.interval, config.form, config.k, own)
                self._memory.errors = [np.zeros_like(anchor) for anchor in own]
                self._memory.states = [{} for _ in own]
        else:
            self._take_anchors(run, joined, "joined anew")
        if self._is_main:
            self._files.write(run.step, self._memory)

    def _take_anchors(self, run: Any, joined: dict[str, Any], reason: str) -> None:
        """Go on from the common anchor; what this site has learned since its last exchange is given up."""
        if self._is_main:
            while not joined["anchors"]:  # the first site is still sending them
                joined = self._connected.join(self._terms)
                time.sleep(_LOOK)
            path, memory, config = run.out / "wan" / "fetched", self._memory, self._config
            path.parent.mkdir(parents=True, exist_ok=True)
            anchors, states = [], []
            for found in joined["anchors"]:
                path.write_bytes(self._connected.anchor_file(found["file"]))
                anchor, state = read_anchor(path)
                anchors.append(anchor)
                states.append(state)
            path.unlink()
            interval, form, k = memory.interval or config.interval, memory.form or config.form, memory.k or config.k
            self._memory = Memory(joined["round"], run.step, interval, form, k, anchors)
            self._memory.errors = [np.zeros_like(anchor) for anchor in anchors]
            self._memory.states = states
            run.emit("wan_anchor", site=self._name, round=joined["round"], step=run.step, reason=reason)
        self._transfer = None
        self._apply(dict(enumerate(self._memory.anchors)))

    def end(self, *, finished: bool) -> None:
        """The run ends; if it is ``finished``, nobody has to wait for this site any more."""
        if self._client is not None and finished:
            self._client.leave()

    def close(self) -> None:
        """Give up what is on its way, and the connection."""
        if self._transfer is not None:
            self._transfer.stop()
        if self._client is not None:
            self._client.close()

    # ---- steps
    def before_step(self, run: Any, step: int) -> None:
        """A run that went back to a checkpoint goes back to what the exchange was then."""
        if step > self._last_step:
            return
        self._last_step, self._transfer = step - 1, None
        if not self._restore(run, step - 1):
            self._take_anchors(run, self._join(run) if self._is_main else {}, "the run went back to a checkpoint")

    def after_step(self, run: Any, step: int, metrics: Mapping[str, float]) -> None:
        """Exchange what is due; on all ranks, after every step."""
        self._last_step, last = step, step == run.total_steps
        if self._is_main:
            self._loss = float(metrics["loss"]) if np.isfinite(metrics["loss"]) else self._loss
            seconds = float(metrics["seconds"])
            self._seconds = seconds if not self._seconds else 0.8 * self._seconds + 0.2 * seconds
            self._complain(run)
        finishes, fragment = self._told([self._finish_is_due(step, last=last), self._fragment_due(step, last=last)])
        if finishes:
            self._finish(run, step)
        if fragment >= 0:
            self._begin(run, step, fragment)
            if self._told(self._finish_is_due(step, last=last)):
                self._finish(run, step)
        if self._is_main and (finishes or fragment >= 0):
            self._files.write(step, self._memory)

    def _finish_is_due(self, step: int, *, last: bool) -> bool:
        sent = self._memory.sent
        return sent is not None and (last or step >= sent.step + self._config.overlap)

    def _fragment_due(self, step: int, *, last: bool) -> int:
        """The fragment whose exchange begins after ``step``; -1: none."""
        memory, count = self._memory, len(self._fragments)
        if not self._is_main or step == memory.begun or (memory.sent is not None and not last):
            return -1
        due = step - memory.begun >= max(1, memory.interval // count) or (last and count == 1)
        return memory.round % count if due else -1

    def _gathered(self, fragment: int) -> Vector:
        """The weights of a fragment as they are, on rank 0; empty on other ranks."""
        chosen: Fragment = self._fragments[fragment]
        values = self._weights.gather(chosen.names)
        return chosen.join(values) if self._is_main else np.zeros(0, np.float32)

    def _apply(self, vectors: Mapping[int, Vector]) -> None:
        """Fragment -> weights, of rank 0, on all ranks."""
        for index in self._told(sorted(vectors)):
            fragment: Fragment = self._fragments[index]
            values: Mapping[str, AnyArray] = fragment.cut(vectors[index]) if self._is_main else {}
            self._weights.scatter(values, fragment.names)

    def _begin(self, run: Any, step: int, fragment: int) -> None:
        """Send what this site has learned since the last exchange of the fragment."""
        own, memory = self._gathered(fragment), self._memory
        if not self._is_main:
            return
        delta = memory.anchors[fragment] - own
        error, rule = np.zeros_like(delta), self._config.sparse_rule(memory.k)
        form = cast("Form", "float32" if self._config.secure else memory.form)  # masked when the roster is known
        if form == "sparse":
            body, sent_as, error = with_feedback(delta, memory.errors[fragment], rule)
        else:
            body, sent_as = dense_body(delta, form), delta
        header = Header(
            self._terms.digest,
            memory.round,
            self._name,
            len(delta),
            form,
            fragment,
            samples=float((step - memory.begun) * _rows_per_step(run)),
            k=rule.k if form == "sparse" else 0,
            chunk=rule.chunk if form == "sparse" else 0,
            norm=float(np.linalg.norm(sent_as.astype(np.float64))),
            report=self._report(),
        )
        data = pack(header, body)
        memory.sent, memory.begun = Sent(memory.round, fragment, step, data, error), step
        self._transfer = self._transfer_of(memory.sent)
        facts = {"round": memory.round, "fragment": fragment, "norm": header.norm, "samples": header.samples}
        form = "masked" if self._config.secure else form
        run.emit("wan_update", site=self._name, step=step, bytes=len(data), form=form, k=header.k, **facts)

    def _transfer_of(self, sent: Sent) -> Transfer:
        """The exchange of an update, masked where the run is ``secure``."""
        masker, config = None, self._config
        if config.secure:
            purpose = self._terms.digest.encode()
            secrets = shared_secrets(Path(config.key), [Path(path) for path in config.peers], purpose)
            masker = Masker(self._name, secrets)
        return Transfer(self._connected, sent, self._name, masker)

    def _report(self) -> dict[str, float]:
        """What was measured, for the coordinator's decisions; nothing of it if the run is not adaptive, so that an update of a
        run that is repeated has the same bytes."""
        client = self._connected
        if not self._config.adaptive or not (client.up and client.down):
            return {}
        measured = {"up": client.up, "down": client.down, "delay": client.delay}
        return {"step_seconds": self._seconds, "loss": self._loss, **measured}

    def _finish(self, run: Any, step: int) -> None:
        """The update's round is closed, or will be: wait for it, and go on from what it has decided. A run that is asked to stop
        meanwhile stops, and the one that continues it waits on."""
        started = time.monotonic()
        self.waiting = f"the other sites, in round {self._memory.round}"
        outcome: Outcome | None = None
        while not self._told(outcome is not None):
            if self._is_main and self._transfer is not None:
                outcome = self._transfer.poll(_LOOK)
                self._complain(run)
            if not self._told(outcome is not None) and run.stopping():
                return
        self.waiting, self._transfer = "", None
        counted = self._told(outcome is not None and outcome.result is not None)
        if not counted:
            reason = outcome.reason if outcome is not None else ""
            if self._is_main:
                run.emit("wan_late", site=self._name, step=step, round=self._memory.round, reason=reason)
            self._take_anchors(run, self._join(run) if self._is_main else {}, reason)
            return
        fragment = self._told(self._memory.sent.fragment if self._memory.sent else -1)
        own = self._gathered(fragment) if self._config.mixing < 1 else None
        vectors: dict[int, Vector] = {}
        if self._is_main:
            assert outcome is not None
            vectors = {fragment: self._merged(run, step, outcome, time.monotonic() - started)}
            if own is not None:
                vectors[fragment] = mixed(own, vectors[fragment], self._config.mixing)
        self._apply(vectors)

    def _merged(self, run: Any, step: int, outcome: Outcome, seconds: float) -> Vector:
        """The fragment's anchor after the round."""
        memory, result = self._memory, outcome.result
        assert memory.sent is not None
        assert result is not None
        fragment = memory.sent.fragment
        before = self._terms.outer, memory.anchors[fragment], memory.states[fragment]
        averaged = self._terms.averaged(fragment)
        if self._terms.secure:
            anchor, state = merge_sum(*before, words_of(outcome.updates[0]), result.members, result.scale, averaged)
        else:
            updates = [vector_of(*unpack(data)) for data in outcome.updates]
            anchor, state = merge(*before, updates, result.members, averaged)
        if vector_digest(anchor) != result.anchor:
            raise EnvironmentFault(
                "the common weights of this site differ from the coordinator's",
                where=f"round {result.round}, fragment {fragment}",
                found=vector_digest(anchor),
                expected=result.anchor,
                fix="remove the directory wan/ of this run and start it again: it then takes the common weights",
            )
        memory.anchors[fragment], memory.states[fragment] = anchor, state
        if outcome.own:
            memory.errors[fragment] = memory.sent.error
        memory.sent, memory.round = None, result.round + 1
        run.emit("wan_round", site=self._name, step=step, seconds=seconds, **_facts(result))
        self._follow(run, step, result)
        return anchor

    def _follow(self, run: Any, step: int, result: Result) -> None:
        """Interval and form that the coordinator has chosen for this site."""
        plan, memory = result.plan.get(self._name), self._memory
        if plan is None:
            return
        before = memory.interval, memory.form, memory.k
        interval, form, k = int(plan["interval"]), str(plan["form"]), int(plan["k"]) or memory.k
        if interval < 1 or form not in (*ELEMENT_BYTES, "sparse") or not 0 <= k <= self._terms.values["chunk"]:
            found = f"interval {interval}, form {form}, k {k}"
            raise EnvironmentFault("the coordinator plans what cannot be", where=f"round {result.round}", found=found)
        memory.interval, memory.form, memory.k = interval, form, k
        if (memory.interval, memory.form, memory.k) != before:
            run.emit("wan_plan", site=self._name, step=step, **plan)

    def _complain(self, run: Any) -> None:
        while self._complaints:
            run.emit("wan_link", site=self._name, reason=f"the coordinator is not reached: {self._complaints.pop(0)}")


def _rows_per_step(run: Any) -> int:
    """Sequences of a step of this site. From the settings, so that steps that are repeated weigh the same."""
    train = run.settings.train
    return int(train.batch_size * run.parallel_plan.micro_batches(train.accumulation))


def _facts(result: Result) -> dict[str, Any]:
    """Of a closed round, for its event."""
    return {
        "round": result.round,
        "fragment": result.fragment,
        "members": {member.name: member.samples for member in result.members},
        "missing": dict(result.missing),
        "reason": result.reason,
        "bytes": sum(member.num_bytes for member in result.members),
        "anchor": result.anchor,
    }
