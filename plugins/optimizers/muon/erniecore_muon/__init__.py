"""The Muon optimizer for erniecore."""
