// check.hpp - what every group of checks needs: a report, argument generators, distances in ulp, fenced memory.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "blocks.hpp"
#include "layout.hpp"

namespace {

constexpr double INF = std::numeric_limits<double>::infinity();

// One line of the report. Only the first failures of a group are told in full.
struct group {
    static long failed_groups;
    const char* name;
    long checks = 0, failures = 0;
    double worst = -1;

    explicit group(const char* title) : name(title) {}
    group(const group&) = delete;
    ~group() {
        std::printf("%-4s %-44s %10ld checks", failures ? "FAIL" : "ok", name, checks);
        if (worst >= 0) std::printf("  max %.4f ulp", worst);
        if (failures) std::printf("  %ld failed", failures);
        std::printf("\n");
        std::fflush(stdout);
        failed_groups += failures != 0;
    }
    __attribute__((format(printf, 3, 4))) void that(bool right, const char* format, ...) {
        ++checks;
        if (right || ++failures > 5) return;
        std::va_list arguments;
        va_start(arguments, format);
        std::printf("     %s: ", name);
        std::vprintf(format, arguments);
        std::printf("\n");
        va_end(arguments);
    }
    // A distance that must not exceed `limit`; the largest is reported.
    void within(double ulp, double limit, double x, double got) {
        worst = ulp > worst || ulp != ulp ? ulp : worst;
        that(ulp <= limit, "at %a (%.17g): got %a, %.4f ulp off", x, x, got, ulp);
    }
};
long group::failed_groups = 0;

// Steele, Lea and Flood's splitmix64.
struct generator {
    uint64_t state;
    uint64_t bits() {
        uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    double uniform(double low, double high) { return low + (high - low) * double(bits() >> 11) * 0x1p-53; }
};

template <class To, class From> To reinterpret(From x) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To y;
    std::memcpy((void*)&y, &x, sizeof y);
    return y;
}
// The same bits, or both NaN.
template <class C> bool same(C a, C b) { return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b); }

// |got - want| in units of the last place that C has at `want`, a subnormal one's included.
template <class C> double ulp_between(C got, long double want) {
    using limits = std::numeric_limits<C>;
    if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got) ? 0 : INF;
    if ((long double)got == want) return 0;
    if (std::isinf(want) || std::isinf(got)) return INF;
    const int lowest = limits::min_exponent - limits::digits, at = want == 0 ? lowest : std::ilogb(want) - (limits::digits - 1);
    return double(std::fabs((long double)got - want) / std::ldexp(1.0L, at > lowest ? at : lowest));
}

// ---------------------------------------------------------------- half formats by scalar arithmetic

template <class H> struct half_format;
template <> struct half_format<f16> { static constexpr int mantissa = 10, lowest = -14, infinity = 0x7c00; };
template <> struct half_format<bf16> { static constexpr int mantissa = 7, lowest = -126, infinity = 0x7f80; };

// The value of a pattern; infinity's is the power of two that would follow the largest finite one.
template <class H> double finite_value(int magnitude) {
    using F = half_format<H>;
    const int exponent = magnitude >> F::mantissa, fraction = magnitude & ((1 << F::mantissa) - 1);
    const int significand = exponent ? fraction + (1 << F::mantissa) : fraction;
    return std::ldexp(double(significand), (exponent ? exponent - 1 : 0) + F::lowest - F::mantissa);
}
template <class H> float widened(H h) {
    const int magnitude = h.bits & 0x7fff;
    const double a = magnitude > half_format<H>::infinity ? NAN : magnitude == half_format<H>::infinity ? INF : finite_value<H>(magnitude);
    return float(h.bits & 0x8000 ? -a : a);
}
// To the nearest, ties to even: x in units of the last place it keeps, rounded to an integer.
template <class H> H narrowed(float x) {
    using F = half_format<H>;
    const int sign = std::signbit(x) ? 0x8000 : 0;
    if (x != x) return {uint16_t(0x7fff)};
    if (std::isinf(x)) return {uint16_t(sign | F::infinity)};
    const int exponent = x == 0 ? F::lowest : std::max(std::ilogb(x), F::lowest);
    const double units = std::nearbyint(std::fabs(double(x)) * std::ldexp(1.0, F::mantissa - exponent));
    return {uint16_t(sign | std::min(((exponent - F::lowest) << F::mantissa) + int(units), int(F::infinity)))};
}

inline float lane_of(f16 x) { return widened(x); }
inline float lane_of(bf16 x) { return widened(x); }
template <class C> C lane_of(C x) { return x; }
template <class S> S element_of(double x) {
    if constexpr (sizeof(S) == 2) return narrowed<S>(float(x));
    else return S(x);
}

template <class S> const char* dtype_name() {
    return std::is_same<S, float>::value ? "f32" : std::is_same<S, double>::value ? "f64" : std::is_same<S, f16>::value ? "f16" : "bf16";
}
// "title f32", living as long as the group that is named so.
struct title {
    char text[64];
    title(const char* what, const char* dtype) { std::snprintf(text, sizeof text, "%s %s", what, dtype); }
};

// ---------------------------------------------------------------- memory whose neighbours must not be touched

// A page between two that cannot be read or written.
struct fenced_page {
    size_t size = size_t(sysconf(_SC_PAGESIZE));
    char* memory = static_cast<char*>(mmap(nullptr, 3 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    fenced_page() {
        if (memory == MAP_FAILED || mprotect(memory + size, size, PROT_READ | PROT_WRITE)) {
            std::perror("fenced_page");
            std::exit(2);
        }
    }
    fenced_page(const fenced_page&) = delete;
    ~fenced_page() { munmap(memory, 3 * size); }
    char* begin() const { return memory + size; }
    char* end() const { return memory + 2 * size; }
};

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DS_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define DS_SANITIZED 1
#endif

// `size` bytes and not one more: on the heap for a sanitizer, which sees both ends, else up against a page that cannot be touched.
class exact_memory {
    size_t size_ = 0, mapped = 0;
    char* memory = nullptr;

public:
    explicit exact_memory(size_t size) : size_(size) {
#if defined(DS_SANITIZED)
        memory = new char[size ? size : 1];
#else
        const size_t page = size_t(sysconf(_SC_PAGESIZE)), held = (size + page) / page * page;
        mapped = held + page;
        memory = static_cast<char*>(mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        if (memory == MAP_FAILED || mprotect(memory + held, page, PROT_NONE)) {
            std::perror("exact_memory");
            std::exit(2);
        }
#endif
    }
    exact_memory(exact_memory&& o) noexcept : size_(o.size_), mapped(o.mapped), memory(o.memory) { o.memory = nullptr; }
    exact_memory& operator=(exact_memory&&) = delete;
    ~exact_memory() {
        if (!memory) return;
#if defined(DS_SANITIZED)
        delete[] memory;
#else
        munmap(memory, mapped);
#endif
    }
    size_t size() const { return size_; }
    char* data() const {
#if defined(DS_SANITIZED)
        return memory;
#else
        return memory + mapped - size_t(sysconf(_SC_PAGESIZE)) - size_;
#endif
    }
};
// The same as elements of one type, filled with `value`.
template <class T> class exact_array {
    exact_memory memory;
    size_t count;

public:
    explicit exact_array(ptrdiff_t n, T value = T{}) : memory(size_t(n) * sizeof(T)), count(size_t(n)) { std::fill(data(), data() + n, value); }
    T* data() const { return reinterpret_cast<T*>(memory.data()); }
    size_t size() const { return count; }
    T& operator[](ptrdiff_t i) const { return data()[i]; }
};

}  // namespace
