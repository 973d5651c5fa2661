"""The plain objects that the core and the plugins hand to each other, a module per subject.

Data classes and protocols only: no paddle and no numpy at import, no behavior beyond what a name needs.
"""
