from dualsoft._simd import *  # noqa: F403
