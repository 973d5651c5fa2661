"""What those who load a model directory expect of it, as rules; ``ernie model check`` and exporters run them."""
