"""The LISA optimizer for erniecore."""
