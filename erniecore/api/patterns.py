"""Building block: regular expressions that somebody else wrote, matched within a limit of time."""

from erniecore_system.patterns import PatternMatcher, PatternTimeout, compile_pattern

__all__ = ["PatternMatcher", "PatternTimeout", "compile_pattern"]
