"""Types of the flat vectors that sites exchange. Only numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: float32 [n]: all parameters of a fragment, one after the other
Vector = NDArray[np.float32]
#: uint8 [n]
Bytes = NDArray[np.uint8]
#: uint32 [n]: fixed-point numbers of secure aggregation
Words = NDArray[np.uint32]
#: of any dtype
AnyArray = NDArray[Any]
