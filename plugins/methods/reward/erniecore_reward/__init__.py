"""Reward models for erniecore: a scalar head learned from pairs."""

from erniecore_reward.scoring import RewardModel, score

__all__ = ["RewardModel", "score"]
