"""``ernie doctor``: health checks of this machine, its Paddle wheels, devices and plugins. Reads metadata, files and the
output of vendors' tools; imports no paddle, and writes only a scratch file that it removes.
"""
