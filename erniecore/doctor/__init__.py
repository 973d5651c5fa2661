"""What ``ernie doctor`` looks at: this machine, its paddle, its devices and plugins. Reads metadata, files and vendors'
tools; imports no paddle, and changes nothing but a scratch file that it removes.
"""
