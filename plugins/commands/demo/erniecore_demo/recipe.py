"""What the embedded example trains: sizes, settings and amounts of data. Numbers only; the story is ``story.py``.

Found by trying: with the usual initialization of 0.02 a model this small does not learn to copy in so few steps.
"""

from __future__ import annotations

#: rows of data; held-out questions never occur in training
TRAIN_ROWS, HELDOUT_ROWS = 12000, 200
#: share of training rows with a question and answer before, so that it can also be chatted with
FOLLOW_UPS = 0.25
#: families of ``tasks.py``, and the share of held-out answers that must be right in at least one of them
FAMILIES = ("copy", "reverse", "last", "sort", "identity")
#: the family that is answered in two ways, until preferences say in which, and how many pairs say so
UNDECIDED, PAIRS, HELDOUT_PAIRS = "greet", 480, 200
#: fixed sentences, however they are asked for: the one family that memory alone solves
MEMORIZED = "identity"
GOAL = 0.9
#: entries of the tokenizer, and the rows that it is trained on
VOCABULARY, VOCABULARY_ROWS = 420, 4000
#: killed after this step; the last checkpoint before it is what the run continues from
KILL_AFTER, CHECKPOINT_EVERY = 230, 150
MAX_NEW_TOKENS = 12

#: `ernie model init --size`: keys of config.json that differ from the recipe `tiny`
SIZE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "initializer_range": 0.1,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_intermediate_size": 32,
    "moe_num_shared_experts": 1,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": 1,
    "num_nextn_predict_layers": 0,
}

SFT_FILE = """\
model:
  path: {base}
method: sft
data:
  train: {train}
  format: messages
  max_seq_len: 128
  packing: greedy
train:
  max_steps: 400
  batch_size: 14
  learning_rate: 5e-3
  warmup_steps: 20
  schedule: cosine
  weight_decay: 0.1
optimizer:
  beta2: 0.95
checkpoint:
  every: {every}
log:
  every: 50
"""

#: a learning rate of 5e-4 learns the preference as well and forgets everything else
DPO_FILE = """\
model:
  path: {base}
method:
  name: dpo
  beta: 0.1
data:
  train: {train}
  max_seq_len: 128
train:
  max_steps: 70
  batch_size: 2
  learning_rate: 3e-5
  warmup_steps: 4
  schedule: cosine
log:
  every: 20
"""
