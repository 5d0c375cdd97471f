# distutils: language = c++
# cython: language_level=3, freethreading_compatible=True
"""Which ISA levels this CPU runs and the operating system allows. Compiled for the baseline, so that it can be asked first."""

cdef extern from *:
    """
    #if defined(__x86_64__)
    static int ds_runs_v2() { return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("popcnt"); }
    static int ds_runs_v3() {
        return ds_runs_v2() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi")
            && __builtin_cpu_supports("bmi2");
    }
    static int ds_runs_v4() {
        return ds_runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd")
            && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    }
    static int ds_runs_v4_bf16() { return ds_runs_v4() && __builtin_cpu_supports("avx512bf16"); }
    static void ds_look() { __builtin_cpu_init(); }
    static int ds_is_arm() { return 0; }
    #else
    static int ds_runs_v2() { return 0; }
    static int ds_runs_v3() { return 0; }
    static int ds_runs_v4() { return 0; }
    static int ds_runs_v4_bf16() { return 0; }
    static void ds_look() {}
    #if defined(__aarch64__)
    static int ds_is_arm() { return 1; }
    #else
    static int ds_is_arm() { return 0; }
    #endif
    #endif
    """
    int ds_runs_v2()
    int ds_runs_v3()
    int ds_runs_v4()
    int ds_runs_v4_bf16()
    int ds_is_arm()
    void ds_look()


def usable_levels():
    """The levels that run here, from the narrowest to the widest."""
    ds_look()
    answers = [("x86_64_v2", ds_runs_v2()), ("x86_64_v3", ds_runs_v3()), ("x86_64_v4", ds_runs_v4()), ("x86_64_v4_bf16", ds_runs_v4_bf16()),
               ("aarch64", ds_is_arm())]
    return [level for level, runs in answers if runs]
