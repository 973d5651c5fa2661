"""Muon for erniecore."""
