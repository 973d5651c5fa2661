"""The mark of a hook's specification, for pluggy."""

import pluggy

hookspec = pluggy.HookspecMarker("erniecore")
