"""ERNIEKit's flat YAML and JSON files as settings of erniecore.

``table`` knows every key, ``values`` and ``rules`` convert, ``convert`` applies them to one file, ``reading`` and
``writing`` do the rest. Light: no paddle, no numpy, no plugin is loaded.
"""
