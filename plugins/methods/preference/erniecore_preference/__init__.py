"""Preference optimization for erniecore: DPO and its family, KTO, ORPO, SimPO."""
