"""What the embedded example trains: sizes, settings and amounts of data. Numbers only; the story is ``story.py``."""

from __future__ import annotations

#: rows of data; held-out questions never occur in training
TRAIN_ROWS, HELDOUT_ROWS = 12000, 160
#: families of ``tasks.py``, and the share of held-out answers that must be right in at least one of them
FAMILIES = ("copy", "last", "recall", "identity")
GOAL = 0.9
#: entries of the tokenizer
VOCABULARY = 320
#: killed after this step; the last checkpoint before it is what the run continues from
KILL_AFTER, CHECKPOINT_EVERY = 170, 120
MAX_NEW_TOKENS = 12

#: `ernie model init --size`: keys of config.json that differ from the recipe `tiny`
SIZE = "hidden_size=64,num_hidden_layers=3"

RUN_FILE = """\
model:
  path: {base}
method: sft
data:
  train: {train}
  format: messages
  max_seq_len: 512
  packing: greedy
train:
  max_steps: 300
  batch_size: 1
  learning_rate: 5e-3
  min_lr: 1e-4
  warmup_steps: 20
  schedule: cosine
  weight_decay: 0.01
  adam_beta2: 0.98
checkpoint:
  every: {every}
log:
  every: 50
"""
