"""The objective of group-relative policy optimization. Per step: G completions are sampled
per prompt, their rewards are compared within the group, and the better ones become likelier:

    L = Σ_tokens w_t [ -min(r A, clip(r, 1 - low, 1 + high) A) + kl * k3 ]

with the ratio r, the weights w and the advantages A of the tables in ``losses.py`` and ``advantages.py``. The rollouts
of a step may be learned from in further steps (``updates_per_rollout``); they are part of the checkpoint until then.

Letters: T = batch * sequence positions, n loss tokens, a completions, P prompts, G completions each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle  # noqa: TID253
from erniecore_generation.generate import generating
from erniecore_generation.rollout import Rollout
from erniecore_generation.sampling import Sampling
from erniecore_preference.scoring import auxiliary_loss, inputs_of

from erniecore.api import CheckpointError, ops
from erniecore.api.data import MediaReader
from erniecore.api.method import Batch, LossOutput, Objective, Sample, Tokenizer
from erniecore_rl import batches as laid
from erniecore_rl.advantages import ADVANTAGES, positive_weights, zero_variance
from erniecore_rl.batches import Completions, TrainedCompletion, completions_of
from erniecore_rl.config import GrpoConfig
from erniecore_rl.losses import RATIOS, WEIGHTS, Ratio, clipped_loss, k3, mismatch_factor
from erniecore_rl.pass_rates import PassRates
from erniecore_rl.pool import RolloutPool
from erniecore_rl.precision import inexact_weights
from erniecore_rl.prompts import Prompt, digest_of, prompts_of, streams
from erniecore_rl.replay import RouterReplay
from erniecore_rl.rollouts import ScoredRollouts, go_on, measured, score, score_rollouts, solved
from erniecore_rl.selection import prompts_of_step

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from paddle import Tensor

    Metrics = dict[str, tuple[Tensor | float, float]]


class GrpoObjective(Objective):
    """See ``erniecore.api.Objective``. Batches that were not prepared (held-out data) are answered greedily; their loss
    is minus the mean reward.

    Args:
        config: the method's section. policy: a ``CausalLM``. reference: a frozen one, or None.
    """

    #: the loss is no likelihood: it has no perplexity
    is_nll = False

    def __init__(self, config: Any, policy: Any, reference: Any, tokenizer: Tokenizer) -> None:
        self.config, self.policy, self.reference, self.tokenizer = config, policy, reference, tokenizer
        self.repeats = config.updates_per_rollout
        self._batches: list[Batch] = []
        self._digest = ""
        #: of a checkpoint: digest of a process's prompts -> the completions that it learns from
        self._loaded: dict[str, list[Batch]] = {}
        self._step = 0
        self._measured: Metrics = {}
        self._rates = PassRates()
        replays = isinstance(config, GrpoConfig) and config.router_replay != "none"
        self._replay = RouterReplay(policy) if replays else None
        self._seed = 0
        self._pool = RolloutPool(config.group_size)

    # ---- rollouts
    def begin(self, batches: Iterator[Batch], *, step: int, out: Path) -> Mapping[str, object]:
        """Measure pass rates where hints or a curriculum go by them; every rank measures all of them.

        Raises:
            CheckpointError: a run goes on whose checkpoint has none, so that the initial weights are gone.
        """
        c, rates = self.config, self._rates
        if not c.needs_pass_rates or len(rates):
            return {}
        if step:
            raise CheckpointError(
                "this checkpoint holds no pass rates, and its weights are not the initial ones",
                expected="a run that began with method.hint_probability or method.curriculum",
                fix="leave both out, or begin a new run (run.resume=never)",
            )
        sampling = Sampling(do_sample=True, temperature=c.temperature, top_k=c.top_k, top_p=c.top_p, min_p=c.min_p)
        for batch in batches:
            new = [prompt for prompt in prompts_of(batch) if prompt not in rates]
            if new:
                scored = self._roll_out(new, sampling, c.pass_rate_samples)
                rates.add(new, solved(scored.rewards, c.solved_at).mean(axis=1).tolist())
        return rates.summary()

    def prepare(self, batches: Sequence[Batch], *, step: int, seed: int) -> list[Batch]:
        """The completions to learn from in this step: new ones, or those of an earlier step that are not used up.

        Raises:
            CheckpointError: the step continues with completions that the checkpoint does not hold.
        """
        self._step, self._seed = step, seed
        self._route_freely()
        if self.repeats > 1:
            self._digest = digest_of(streams([prompt for batch in batches for prompt in prompts_of(batch)], 1))
        if (step - 1) % self.repeats == 0:
            self._batches = self._rolled_out(batches, seed)
        else:
            self._measured = {}
            self._batches = self._loaded.get(self._digest, []) if self._loaded else self._batches
        self._loaded = {}
        if not self._batches:
            raise CheckpointError(
                "the checkpoint lacks the completions that this step learns from",
                found=f"step {step} of {self.repeats} per rollout",
                fix="resume with the method.updates_per_rollout, the batch size and the number of processes that the checkpoint "
                "was made with",
            )
        return self._batches

    def carried(self) -> dict[str, NDArray[Any]]:
        """The completions that the next step learns from, too, and those that go on in it, by the prompts of this process."""
        kept = {self._digest: self._batches} if self._step % self.repeats else self._loaded
        return {**laid.to_arrays(kept), **self._pool.arrays(), **self._rates.arrays()}

    @property
    def carries(self) -> bool:
        """What differs by process has a name of its own."""
        return False

    def load_carried(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue with the completions of a checkpoint."""
        self._pool.load(arrays)
        self._rates.load(arrays)
        self._loaded = laid.from_arrays(arrays)

    def _rolled_out(self, batches: Sequence[Batch], seed: int) -> list[Batch]:
        c = self.config
        options = {"temperature": c.temperature, "top_k": c.top_k, "top_p": c.top_p, "min_p": c.min_p}
        sampling = Sampling(do_sample=True, seed=seed, **options)
        prompts = prompts_of_step(batches, self._step, c, self._rates)
        hinted = float(sum(prompt.hint > 0 for prompt in prompts))
        further: Metrics = {"hinted": (hinted, float(len(prompts)))} if c.hint_probability else {}
        with self._sampler():
            if c.rollout_pool == 1:
                scored = self._roll_out(prompts, sampling, c.group_size)
            else:
                scored, begun = self._pooled(prompts, sampling)
                further.update(begun)
        same = zero_variance(scored.rewards)
        further["zero_variance"] = float(same.sum()), float(len(same))
        self._measured = {**measured(scored, c.solved_at), **further}
        template: Any = self.tokenizer.chat_template
        reader = template if isinstance(template, MediaReader) else None
        size, pad_id = c.learn_batch_size, self.tokenizer.pad_id
        made = laid.micro_batches(self._units(prompts, scored), size, pad_id, reader)
        # each pass of a model may need all ranks, so that all have equally many
        most = max(self.all_gather_object(len(made)))
        if not most:
            made = laid.micro_batches([self._unlearned(prompts[0], scored)] if prompts else [], size, pad_id, reader)
        made += [laid.padding(pad_id) for _ in range(max(most, 1) - len(made))]
        return [self._with_log_probs(batch) for batch in made]

    @contextmanager
    def _sampler(self) -> Iterator[None]:
        """Within, the policy has the weights that sample in this step."""
        c = self.config
        options = {"mantissa": c.rollout_mantissa, "noise": c.rollout_noise, "seed": self._seed}
        with generating(self.policy), inexact_weights(self.policy, **options):
            yield

    def _pooled(self, prompts: Sequence[Prompt], sampling: Sampling) -> tuple[ScoredRollouts, Metrics]:
        """This step's rollouts out of the pool; metric ``begun_earlier``: share of their tokens that earlier steps sampled."""
        c, asked_for = self.config, {self._step: list(prompts)}
        for step in range(self._step + self.repeats, self._step + c.rollout_pool * self.repeats, self.repeats):
            asked_for[step] = prompts_of_step(self.batches_of(step), step, c, self._rates)

        def further(asked: Sequence[Prompt], begun: Sequence[Rollout], until: int) -> list[Rollout]:
            options = {"copies": c.group_size, "max_new_tokens": c.max_new_tokens, "batch_size": c.rollout_batch_size}
            return go_on(
                self.policy,
                self.tokenizer,
                asked,
                begun,
                sampling=sampling,
                until=until,
                ended=lambda own: all(self.all_gather_object(own)),
                **options,
            )

        rollouts, earlier = self._pool.take(asked_for, further)
        scored = score(self.tokenizer, prompts, rollouts, self.reward_functions, c.group_size)
        return scored, {"begun_earlier": (float(earlier.sum()), float(sum(len(r.ids) for r in rollouts)))}

    def _roll_out(self, prompts: Sequence[Prompt], sampling: Sampling, copies: int) -> ScoredRollouts:
        return score_rollouts(
            self.policy,
            self.tokenizer,
            prompts,
            self.reward_functions,
            sampling=sampling,
            copies=copies,
            max_new_tokens=self.config.max_new_tokens,
            batch_size=self.config.rollout_batch_size,
        )

    def _units(self, prompts: Sequence[Prompt], scored: ScoredRollouts) -> list[list[Sample]]:
        """The samples of each prompt that has something to learn, in lists that stay in one micro-batch."""
        units = []
        for group, prompt in enumerate(prompts):
            completions = self._completions(group, prompt, scored)
            if completions:
                units.append(laid.samples_of(prompt.ids, completions, prompt.origin, prompt.media))
        return units

    def _unlearned(self, first: Prompt, scored: ScoredRollouts) -> list[Sample]:
        """What stands in for a step without anything to learn: the first prompt and its first completion."""
        none = [laid.sampled(first.ids, scored.rollouts[0], 0.0)]
        return [laid.unlearned(sample) for sample in laid.samples_of(first.ids, none, first.origin, first.media)]

    def _completions(self, group: int, prompt: Prompt, scored: ScoredRollouts) -> list[TrainedCompletion]:
        """The completions to one prompt that are learned from."""
        rewards, rollouts = scored.rewards[group : group + 1], scored.group(group)
        if self.config.zero_variance == "drop" and zero_variance(rewards)[0]:
            return []
        learned = self._learned(scored, group)
        advantages = self._weighted(ADVANTAGES[self.config.scale_rewards](rewards)[0], scored, group).tolist()
        sides = self._sides(rewards[0], learned)
        return [
            laid.sampled(prompt.ids, rollouts[i], advantages[i], int(sides[i]))
            for i in np.flatnonzero(learned).tolist()
        ]

    def _weighted(self, advantages: NDArray[np.float64], scored: ScoredRollouts, group: int) -> NDArray[np.float64]:
        """Advantages [G] with less weight for what is learned well already."""
        c = self.config
        if not c.positives_reduction:
            return advantages
        entropies = np.array([rollout.entropies.mean() for rollout in scored.group(group)])
        accuracy = float(solved(scored.rewards[group], c.solved_at).mean())
        bounds = {"entropy": c.positives_entropy, "accuracy_above": c.positives_accuracy}
        return advantages * positive_weights(advantages, entropies, accuracy, reduction=c.positives_reduction, **bounds)

    def _learned(self, scored: ScoredRollouts, group: int) -> NDArray[np.bool_]:
        """bool [G]: all completions of a group, or those that were not cut off."""
        return np.array([r.finished or not self.config.mask_truncated for r in scored.group(group)])

    def _sides(self, rewards: NDArray[np.float64], learned: NDArray[np.bool_]) -> NDArray[np.int8]:
        """int8 [G]: which completions of a group make a pair. None here."""
        return np.zeros(len(rewards), np.int8)

    def _with_log_probs(self, batch: Batch) -> Batch:
        """``batch`` with the log-probabilities that the completions have now, by the code that will learn from them, and with
        the experts that learning goes to."""
        completions = completions_of(batch)
        if self._replay is not None:
            batch = replace(batch, fields={**batch.fields, **self._experts(self._replay, batch, completions)})
        for name, model in self._models():
            if model is not None:
                if self._replay is not None and model is self.policy:
                    self._replay.give(batch.fields, always=True)
                batch = laid.with_field(batch, name, completions.where, self._constant(model, batch, completions))
                self._route_freely()
        return batch

    def _experts(self, replay: RouterReplay, batch: Batch, completions: Completions) -> Mapping[str, NDArray[Any]]:
        """The experts that are chosen at the rollout, by fields."""
        weights = self._sampler() if self.config.router_replay == "sampler" else nullcontext()
        with weights:
            return replay.recorded(lambda: self._constant(self.policy, batch, completions), batch.input_ids.shape)

    def after_step(self, *, step: int, rate: float) -> None:
        """Outside of updates routers choose as ever."""
        self._route_freely()

    def _route_freely(self) -> None:
        if self._replay is not None:
            self._replay.clear()

    def _models(self) -> Sequence[tuple[str, Any]]:
        """(field, model) of the log-probabilities that a rollout keeps."""
        return ("old", self.policy), ("reference", self.reference)

    def _constant(self, model: Any, batch: Batch, completions: Completions) -> NDArray[np.float64]:
        training = model.training
        model.eval()
        try:
            with paddle.no_grad():
                values: NDArray[np.float64] = self._log_probs(model, batch, completions)[0].numpy()
                return values
        finally:
            if training:
                model.train()

    def _log_probs(self, model: Any, batch: Batch, completions: Completions) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Log-probability of each loss token under softmax(logits / temperature), float64 [n], and the auxiliary
        losses of the forward pass. Only learned positions reach the head."""
        features = model.features(paddle.to_tensor(batch.input_ids), **inputs_of(batch))
        weight, transposed, bias = model.head()
        hidden_TH = features.hidden.reshape([-1, features.hidden.shape[-1]])
        if self.config.temperature != 1:
            hidden_TH = hidden_TH / self.config.temperature
            bias = None if bias is None else bias / self.config.temperature
        labels = paddle.to_tensor(batch.labels.reshape(-1))
        nll_T = ops.linear_cross_entropy(
            hidden_TH, weight, labels, transposed=transposed, bias=bias, chunk=self.loss_chunk
        )
        if not len(completions.where):
            return nll_T[:0].astype("float64"), features.auxiliary
        return -nll_T.gather(paddle.to_tensor(completions.where)).astype("float64"), features.auxiliary

    # ---- learning
    def normalizers(self, batch: Batch) -> Mapping[str, float]:
        """``tokens`` and ``completions`` that are learned from; ``seen``: all tokens but padding."""
        if "advantage" not in batch.fields:
            return {"completions": float(batch.num_samples)}
        completions = completions_of(batch)
        return {
            "tokens": float(completions.lengths[completions.learn].sum()),
            "completions": float(completions.learn.sum()),
            "seen": float(batch.num_tokens),
        }

    def __call__(self, batch: Batch, totals: Mapping[str, float]) -> LossOutput:
        """Loss and metrics of one micro-batch of a rollout; greedy completions and their reward for other batches."""
        if "advantage" not in batch.fields:
            return self._evaluated(batch)
        completions = completions_of(batch)
        if self._replay is not None:
            self._replay.give(batch.fields)
        log_probs, auxiliary = self._log_probs(self.policy, batch, completions)
        extra, metrics = auxiliary_loss(auxiliary, batch, totals["seen"])
        # the first micro-batch also reports what was measured at the rollout
        metrics.update(self._measured if self._batches and batch is self._batches[0] else {})
        if not len(completions.where):
            return LossOutput(loss=log_probs.sum().astype("float32"), metrics={**metrics, "loss": (0.0, 0.0)})
        loss, more = self._loss(log_probs, batch, completions, totals)
        metrics.update(more)
        metrics["loss"] = loss.detach() * (totals["completions"] or 1.0), float(completions.learn.sum())
        loss = loss.astype("float32")
        return LossOutput(loss=loss if extra is None else loss + extra, metrics=metrics)

    def _loss(
        self, log_probs: Tensor, batch: Batch, completions: Completions, totals: Mapping[str, float]
    ) -> tuple[Tensor, Metrics]:
        """The scalar loss, and the metrics of :meth:`_clipped` with ``kl``, the mean per token."""
        c = self.config
        weights = WEIGHTS[c.normalization](completions.lengths, c.max_new_tokens, totals)
        loss, metrics = self._clipped(log_probs, batch, completions, RATIOS[c.ratio], weights)
        if c.kl:
            divergence = k3(log_probs, self._field(batch, "reference", completions))
            learned = completions.learn[completions.owner].astype("float64")
            loss = loss + c.kl * (divergence * paddle.to_tensor(weights[completions.owner] * learned)).sum()
            metrics["kl"] = (divergence.detach() * paddle.to_tensor(learned)).sum(), float(learned.sum())
        return loss, metrics

    def _clipped(
        self, log_probs: Tensor, batch: Batch, completions: Completions, rule: Ratio, weights: NDArray[np.float64]
    ) -> tuple[Tensor, Metrics]:
        """The clipped policy gradient with a weight [a] for the tokens of each completion, and means per token: ``clipped``
        share, ``log_ratio`` |l - l0|, and ``sampling_gap``, the difference of l0 between the sampler's computation and the
        learner's."""
        c = self.config
        owner, lengths = paddle.to_tensor(completions.owner), paddle.to_tensor(completions.lengths.astype("float64"))
        log_ratio = log_probs - self._field(batch, "old", completions)
        ratio = rule(log_ratio, owner, lengths)
        losses, clipped = clipped_loss(
            ratio, self._field(batch, "advantage", completions), c.epsilon_low, c.epsilon_high
        )
        learned = completions.learn[completions.owner].astype("float64")
        n, mask = float(learned.sum()), paddle.to_tensor(learned)
        further: Metrics = {}
        if isinstance(c, GrpoConfig) and c.mismatch:
            sampler = self._field(batch, "sampled", completions).astype("float64")
            factor = mismatch_factor(self._field(batch, "old", completions).astype("float64"), sampler, *c.mismatch)
            losses = losses * factor.astype(losses.dtype)
            further["mismatched"] = ((factor == 0).astype("float64") * mask).sum(), n
        gap = np.abs(batch.fields["sampled"] - batch.fields["old"]).reshape(-1)[completions.where]
        metrics: Metrics = {
            "sampling_gap": (float((gap * learned).sum()), n),
            "clipped": ((clipped.astype("float64") * mask).sum(), n),
            "log_ratio": ((log_ratio.detach().abs() * mask).sum(), n),
            **further,
        }
        return (losses * paddle.to_tensor(weights[completions.owner] * learned)).sum(), metrics

    def _field(self, batch: Batch, name: str, completions: Completions) -> Tensor:
        return paddle.to_tensor(batch.fields[name].reshape(-1)[completions.where])

    def _evaluated(self, batch: Batch) -> LossOutput:
        scored = self._roll_out(list(prompts_of(batch)), Sampling(), 1)
        n = float(len(scored.rewards))
        metrics = {k: v for k, v in measured(scored, self.config.solved_at).items() if not k.endswith("/std")}
        metrics["loss"] = -float(scored.rewards.sum()), n
        return LossOutput(loss=paddle.to_tensor(-float(scored.rewards.sum()) / max(n, 1.0), "float32"), metrics=metrics)
