"""Templates without an end or of any size, and limits of the process that renders templates which are reached soon."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from erniecore_text import render_process

#: not measured by counting passes of loops
BOMBS = {
    "calls": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "whole numbers": "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "digits": "{% set ns = namespace(x=3) %}{% for i in range(25) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x % 7 }}"
    "{{ ns.x // (ns.x // 3) }}",
    "slice": "{{ messages | slice(2000000000) | list }}",
    "slice of a constant": "{{ [1] | slice(2000000000) | list }}",
    "batch": "{{ [1] | batch(2000000000, 1) | list }}",
    "sum": "{{ ([[0] * 1000] * 100000) | sum(start=[]) }}",
    "select": "{{ range(100000) | select('in', range(100000) | list) | list }}",
    "sort": "{% for i in range(20000) %}{% set x = range(100000) | sort(reverse=true) %}{% endfor %}",
    "tojson": "{% set x = 'a' * 60000000 %}{% for i in range(200) %}{% set y = ([x] * 100) | tojson %}{% endfor %}",
    "title": "{{ ('ab ' * 20000000) | title | title }}",
    "list of texts": "{% set ns = namespace(l=[]) %}{% for i in range(200) %}"
    "{% set ns.l = ns.l + ['ab%d' | format(i) * 15000000] %}{% endfor %}",
    "replace": "{{ ('a' * 60000000) | replace('a', 'b' * 1000) }}",
    "replace of a text": "{{ ('a' * 60000000).replace('a', 'b' * 1000) }}",
    "join": "{{ (['a' * 1000000] * 60000000) | join }}",
    "indent": "{{ ('a\n' * 30000000) | indent(1000) }}",
    "split": "{{ ('a ' * 30000000).split() | length }}{{ ('a ' * 30000000).split() | map('upper') | list }}",
}


@contextmanager
def small_limits() -> Iterator[None]:
    """In the block, a rendering has 0.3 s and 256 MiB; a process that was started with other limits is ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render_process, "SECONDS", 0.3)
        patch.setattr(render_process, "MEMORY", 256 << 20)
        render_process._keeper.end()
        yield
        render_process._keeper.end()
