"""The APOLLO optimizer for erniecore."""
