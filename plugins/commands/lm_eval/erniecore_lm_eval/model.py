"""An ERNIE model as lm-evaluation-harness knows models: log-likelihoods, rolling log-likelihoods and completions, with chat
templates whose special tokens no text of a task can forge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from erniecore_generation import options as generation_options
from erniecore_generation.completions import prompt_ids
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from erniecore.api import DataError, UsageError
from erniecore.api.data import Message, Role
from erniecore_lm_eval.generator import Prompt, complete
from erniecore_lm_eval.kept import KeptResults
from erniecore_lm_eval.likelihood import Pair, score_pairs

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from erniecore.api.model import ModelBundle

#: what a task may ask of a completion; the rest of what Transformers knows is refused
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_NEW_TOKENS = 256


@dataclass(slots=True)
class TaskReport:
    """What a task's prompts met: their number, how many lost their beginning to the context's limit, the longest in tokens with
    what is scored or generated, those that went through the chat template, those whose completion began with reasoning."""

    requests: int = 0
    truncated: int = 0
    longest: int = 0
    chat_template: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class _Rendered:
    ids: list[int]
    thinking: bool


@dataclass(frozen=True, slots=True)
class Share:
    """The requests that one of several processes computes: every ``count``-th, from ``index``.

    Attributes:
        gather: [position, result] of this process -> those of all. Every process calls it equally often.
    """

    index: int = 0
    count: int = 1
    gather: Callable[[list[Any]], list[Any]] = list

    def own(self, missing: Sequence[int]) -> Sequence[int]:
        """Those of ``missing`` that are computed here."""
        return missing[self.index :: self.count]


class HarnessModel(TemplateLM):  # type: ignore[misc]  # lm_eval has no types
    """The model of one evaluation.

    Args:
        bundle: with a tokenizer. batch_size: sequences that are decoded together. max_length: tokens of a prompt and what
            follows it; prompts lose their beginning. kept: finished requests. seed: of sampling.
        thinking: whether completions of chat prompts begin with reasoning, where the template has a switch.
        share: of the requests, where several processes have the same model.

    Attributes:
        reports: task -> what its prompts met.
    """

    def __init__(
        self,
        bundle: ModelBundle,
        *,
        batch_size: int,
        max_length: int,
        kept: KeptResults,
        seed: int = 0,
        thinking: bool | None = None,
        share: Share = Share(),  # frozen
    ) -> None:
        super().__init__()
        self._share = share
        assert bundle.tokenizer is not None
        self.bundle, self.tokenizer, self.batch_size, self.max_length = bundle, bundle.tokenizer, batch_size, max_length
        self.reports: dict[str, TaskReport] = {}
        self._kept, self._seed, self._thinking = kept, seed, thinking
        self._rendered: dict[str, _Rendered] = {}

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self.tokenizer.eos_id

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context."""
        return self.tokenizer.bos_id

    @property
    def tokenizer_name(self) -> str:
        """The harness wants one for its own cache, which is not used."""
        return "ernie"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Source of the chat template."""
        return self.tokenizer.chat_template.source if chat_template and self.tokenizer.chat_template is not None else ""

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Ids of plain text, without special tokens."""
        return self.tokenizer.encode(string)

    def apply_chat_template(self, chat_history: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The prompt as a text, by which its ids are found again. The last message is continued where no answer is to begin."""
        template = self.tokenizer.chat_template
        if template is None:
            raise UsageError("this model has no chat template", where="--chat-template", fix="leave the option out")
        messages = [Message(cast(Role, m["role"]), m["content"]) for m in chat_history]
        begun = "" if add_generation_prompt else messages.pop().content
        ids, thinking = prompt_ids(self.tokenizer, template, messages, (), self._thinking)
        text = template.render(messages, add_generation_prompt=True, thinking=self._thinking) + begun
        self._rendered[text] = _Rendered([*ids, *self.tokenizer.encode(begun)], thinking)
        return text

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-probability in nats, whether greedy decoding gives it) of each request's continuation.

        Raises:
            DataError: a continuation without tokens, or longer than ``max_length``.
        """
        return self._scores([self._fitted(request, *self._pair(request)) for request in requests])

    def _loglikelihood_tokens(self, requests: list[tuple[Any, list[int], list[int]]], **kwargs: Any) -> Any:
        """The harness's own entry, for pairs that are encoded."""
        return self._scores([(tuple(context), tuple(continuation)) for _, context, continuation in requests])

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probability of each request's text, in windows of ``max_length`` whose tokens are predicted once."""
        pairs: list[Pair] = []
        sizes = []
        for request in requests:
            ids = self.tok_encode(request.args[0])
            windows = get_rolling_token_windows(
                token_list=ids, prefix_token=self.prefix_token_id, max_seq_len=self.max_length, context_len=1
            )
            found = [(tuple(a), tuple(b)) for a, b in map(make_disjoint_window, windows)]
            report = self._report(request)
            report.longest = max(report.longest, len(ids))
            sizes.append(len(found))
            pairs += found
        scores = iter(self._scores(pairs))
        return [sum(next(scores)[0] for _ in range(size)) for size in sizes]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The completion of each request's prompt, before its first stop string and without reasoning.

        Raises:
            UsageError: a task that asks for what is not supported. DataError: no room for a prompt.
        """
        prompts = [self._prompt(index, request) for index, request in enumerate(requests)]
        keys = [self._kept.key("generate", [prompt.ids, asdict(prompt)]) for prompt in prompts]
        found = {index: text for index, key in enumerate(keys) if (text := self._kept.get(key)) is not None}
        missing = self._share.own([index for index in range(len(prompts)) if index not in found])
        bar = tqdm(total=len(missing), desc="completions", disable=None)
        how: Any = {"rows": self.batch_size, "context": self.max_length}
        for place, text in complete(self.bundle, [prompts[i] for i in missing], **how) if missing else ():
            index = missing[place]
            found[index] = text
            self._kept.put(keys[index], text)
            bar.update()
        bar.close()
        found |= dict(self._share.gather([[index, found[index]] for index in missing]))
        return [found[index] for index in range(len(prompts))]

    def _report(self, request: Instance) -> TaskReport:
        report = self.reports.setdefault(str(request.task_name), TaskReport())
        report.requests += 1
        return report

    def _pair(self, request: Instance) -> tuple[list[int], list[int]]:
        context, continuation = request.args
        if not continuation:
            raise DataError("an answer has no text", where=f"{request.task_name}, document {request.doc_id}")
        if context in self._rendered:
            return self._rendered[context].ids, self.tok_encode(continuation)
        if context:
            return self._encode_pair(context, continuation)  # type: ignore[no-any-return]
        return [self.prefix_token_id], self.tok_encode(continuation)

    def _fitted(self, request: Instance, context: list[int], continuation: list[int]) -> Pair:
        """The pair without the beginning that has no room."""
        where = f"{request.task_name}, document {request.doc_id}"
        if not continuation:
            raise DataError("an answer has no tokens of its own", where=where)
        if len(continuation) > self.max_length:
            found, fix = f"{len(continuation)} tokens", "raise --max-length, or leave the task out"
            raise DataError("an answer is longer than the context", where=where, found=found, fix=fix)
        report = self._report(request)
        report.chat_template += request.args[0] in self._rendered
        report.longest = max(report.longest, len(context) + len(continuation))
        excess = len(context) + len(continuation) - (self.max_length + 1)  # the last token is predicted, not read
        report.truncated += excess > 0
        return tuple(context[max(0, excess) :]), tuple(continuation)

    def _scores(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        keys = [self._kept.key("logprobs", pair) for pair in pairs]
        found = {index: entry for index, key in enumerate(keys) if (entry := self._kept.get(key)) is not None}
        missing = self._share.own([index for index in range(len(pairs)) if index not in found])
        bar = tqdm(total=len(missing), desc="log-likelihoods", disable=None)
        asked = [pairs[i] for i in missing]
        for place, total, greedy in score_pairs(self.bundle, asked, self.max_length) if missing else ():
            found[missing[place]] = [total, greedy]
            self._kept.put(keys[missing[place]], [total, greedy])
            bar.update()
        bar.close()
        found |= dict(self._share.gather([[index, found[index]] for index in missing]))
        return [(found[index][0], found[index][1]) for index in range(len(pairs))]

    def _prompt(self, index: int, request: Instance) -> Prompt:
        context, given = request.args
        rendered = self._rendered.get(context)
        ids = rendered.ids if rendered is not None else self.tok_encode(context) or [self.prefix_token_id]
        stop, new, sampling = self._wanted(str(request.task_name), given)
        report = self._report(request)
        report.chat_template += rendered is not None
        report.reasoning += rendered is not None and rendered.thinking
        report.longest = max(report.longest, len(ids) + new)
        excess = len(ids) + new - self.max_length
        report.truncated += excess > 0
        ids = ids[max(0, excess) :]
        return Prompt(tuple(ids), stop, new, sampling, index, rendered is not None and rendered.thinking)

    def _wanted(self, task: str, given: dict[str, Any]) -> tuple[tuple[str, ...], int, Any]:
        """(stop strings, new tokens, sampling) of a task's ``generation_kwargs``."""
        wanted = dict(given)
        until = wanted.pop("until", None) or ()
        new = int(wanted.pop("max_gen_toks", wanted.pop("max_new_tokens", _NEW_TOKENS)))
        sampled = wanted.pop("do_sample", wanted.get("temperature", 0) not in (0, None))
        values = {name: wanted.pop(name, None) for name in _SAMPLING}
        if unknown := sorted(name for name, value in wanted.items() if (name, value) not in (("num_beams", 1),)):
            raise UsageError(
                "the task asks for generation that is not supported",
                where=f"{task}: generation_kwargs",
                found=", ".join(unknown),
                expected=", ".join(("until", "max_gen_toks", "do_sample", *_SAMPLING)),
            )
        if new >= self.max_length:
            raise UsageError(
                "completions leave no room for a prompt",
                where=f"{task}: max_gen_toks",
                found=f"{new} of {self.max_length} tokens",
                fix="--gen-kwargs max_gen_toks=N",
            )
        options = values if sampled else {**dict.fromkeys(values), "repetition_penalty": values["repetition_penalty"]}
        if sampled and options["temperature"] is None:
            options["temperature"] = 1.0
        sampling = generation_options.sampling_from({}, self._seed, **options)
        return ((until,) if isinstance(until, str) else tuple(until)), new, sampling
