"""What this machine does in a second: ``ernie bench``, whose results plans use."""
