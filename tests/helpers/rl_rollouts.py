"""Objectives of reinforcement learning over the toy model, rows for them, and one step of learning."""

from erniecore_conformance import ToyTokenizer, collate, toy_model
from erniecore_rl.config import GrpoConfig, OnlineDpoConfig, RlooConfig, UpoConfig
from erniecore_rl.encoder import PromptEncoder
from erniecore_rl.objective import GrpoObjective
from erniecore_rl.online_dpo import OnlineDpoObjective
from erniecore_rl.rloo import RlooObjective
from erniecore_rl.upo import UpoObjective

from erniecore.api.data import Conversation, Message
from erniecore.api.reward import RewardFunction

TOKENIZER = ToyTokenizer()
SECTIONS = {
    GrpoObjective: GrpoConfig,
    UpoObjective: UpoConfig,
    RlooObjective: RlooConfig,
    OnlineDpoObjective: OnlineDpoConfig,
}
SMALL = {"group_size": 4, "max_new_tokens": 5, "learn_batch_size": 64}


def conversation(question, completion="ok", **more):
    return Conversation((Message("user", question), Message("assistant", completion, **more)))


def encoded(records, encoder=None, per_row=1):
    encoder = encoder or PromptEncoder(TOKENIZER, 64, new_tokens=5)
    samples = [s for record in records for s in encoder.encode(record)]
    return collate([samples[i : i + per_row] for i in range(0, len(samples), per_row)])


def by_bytes(completions):
    return [sum(c.text.encode()) % 8 / 8 for c in completions]


def objective(kind=GrpoObjective, score=by_bytes, reference=None, **config):
    section = SECTIONS[kind](**{**SMALL, **config})
    made = kind(section, toy_model(), reference, TOKENIZER)
    made.reward_functions = [RewardFunction("toy", 1.0, score)]
    return made


def learned(made, batches):
    """Totals, loss and gradient of a step."""
    totals = {}
    for batch in batches:
        for name, value in made.normalizers(batch).items():
            totals[name] = totals.get(name, 0.0) + value
    outputs = [made(batch, totals) for batch in batches]
    for output in outputs:
        output.loss.backward()
    gradient = made.policy.lm_head.weight.grad.numpy().copy()
    made.policy.clear_gradients()
    return totals, sum(float(o.loss) for o in outputs), gradient
