"""ERNIEKit's flat YAML and JSON files as settings of erniecore.

``table`` knows every key, ``rules`` and ``convert_*`` say what their values mean together, ``convert`` applies them to one
file. Light: no paddle, no numpy, no other plugin is loaded.
"""
