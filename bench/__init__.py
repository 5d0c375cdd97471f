"""The benchmark: dualsoft against every peer that is installed, taking turns in one run.

``python -m bench softmax logsumexp`` prints a table for each operation and saves every time as JSON; ``--help`` lists
the options. An operation is one small file in ``bench/operations``; those of attention (``attention``,
``attention_backward``, ``decode``, ``paged``) share ``bench/attention``, where each library's ways to do it are. The
fastest right one of these takes part.

Each repetition runs every contender once, in an order that rotates; a turn first calls the contender untimed until
other contenders' threads have gone to sleep and its own data is back in the cache, then times as many calls as a
millisecond holds. Figures are medians over the repetitions. Figures drift from run to run; ratios within one run hold.
"""
