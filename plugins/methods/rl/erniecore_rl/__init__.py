"""Reinforcement learning for erniecore: GRPO, GSPO and UPO with verifiable rewards."""
