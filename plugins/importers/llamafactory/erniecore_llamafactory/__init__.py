"""LLaMA-Factory's YAML and JSON files as settings of erniecore.

``keys_*`` know every argument, ``datasets`` reads ``dataset_info.json``, ``convert_*`` say what arguments mean together,
``convert`` applies them to one file. Light: no paddle, no numpy, no other plugin is loaded.
"""
