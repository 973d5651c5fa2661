"""``ernie serve``: a server plugin, its settings and a model; the serving itself belongs to the plugin."""
