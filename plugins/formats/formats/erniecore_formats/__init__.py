"""Data formats for erniecore: erniekit, alpaca, messages."""
