"""``asarray`` and ``asnumpy`` of an emulated card, for programs that are given the name of a module with these two.

``DUALSOFT_EMULATED_ARCH`` names the architecture, "sm_80" if it is not set. Importing this module puts its backend,
such as ``cuda-emulated:sm_80``, to use for the rest of the program: such programs know of nothing to choose.
"""

import os

import devices

import dualsoft

from .lookalike import cupy_for

ARCHITECTURE = os.environ.get("DUALSOFT_EMULATED_ARCH", "sm_80")

cp = cupy_for(ARCHITECTURE)
asarray = cp.asarray
asnumpy = cp.asnumpy

devices.reasons()
dualsoft.use_backend(f"{devices.EMULATED}:{ARCHITECTURE}").__enter__()
