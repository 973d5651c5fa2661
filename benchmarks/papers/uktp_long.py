"""The experiment of ``uktp`` with three times as many steps: after 300 both arms were close to chance."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.papers.uktp import EXPERIMENT as SHORT

EXPERIMENT = replace(SHORT, name="uktp-long", title="Knowledge-text prediction, three times as long", steps=900)
