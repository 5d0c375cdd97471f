// sample.cu - one index of each row, drawn by its logits and its noise: a block takes one row.
//
// The result is defined in float64 (dualsoft/philox.py) and does not depend on what is done here to find it. The first look at a row finds its
// maximum and, where a filter may leave few, the largest elements in order, from which the draw follows. Only where they are not enough, or nothing
// is filtered, elements are looked at once more. Since g = -log(-log(1 - v)) <= -log v, one can beat the best score so far only if
// v <= exp(s - best): a rough exponential and the high word of v decide; few pass, and only these get their low word and two logarithms.
#include "filters.cuh"

namespace ds {

struct sample_options { f64 temperature, top_k, min_p, top_p; };

DS_DEVICE sample_options options_of(const char* at, i64 step) {
    return {load<f64>(at), load<f64>(at + step), load<f64>(at + 2 * step), load<f64>(at + 3 * step)};
}
DS_DEVICE bool are_valid(const sample_options& o) {
    return o.temperature >= 0.0 && o.temperature < infinity() && o.top_k >= 1.0 && o.min_p >= 0.0 && o.min_p <= 1.0 && o.top_p >= 0.0 && o.top_p <= 1.0;
}

// A score and whose it is; of equal ones the lower index.
struct alignas(16) drawn { f64 score; i64 index; };
DS_DEVICE drawn from_lane(drawn d, int distance) { return {from_lane(d.score, distance), from_lane(d.index, distance)}; }
struct higher {
    DS_DEVICE drawn operator()(drawn a, drawn b) const { return b.score > a.score || (b.score == a.score && b.index < a.index) ? b : a; }
};
DS_DEVICE drawn nobody() { return {-infinity(), -1}; }

// ------------------------------------------------------------------ the first look
// The largest element, the first of them in `found`, which is told how many; whether there is a NaN.
DS_DEVICE bool look(list& found, compute& m, const row& from, const axes& inner, int wanted) {
    const part whole = {-1, entry::of(~integer(0), 0)};
    const i64 segments = segments_of(from.length);
    compute least = compute(-infinity());
    bool has_nan = false;
    m = compute(-infinity());
    found.begin(wanted);
    for (i64 segment = 0; segment < segments; ++segment) {
        const share mine = read(from, inner, segment);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            m = larger(m, mine.value[i]);
            has_nan |= is_nan(mine.value[i]) && mine.visible >> i & 1;
        }
        if (!wanted) continue;
        if (segment == 0) least = reached_by(mine, wanted);
        collect(found, mine, whole, segment, least);
    }
    if (wanted) found.cut();
    m = team::reduce(m, maximum());
    return team::count(has_nan) != 0;
}

// ------------------------------------------------------------------ the draw
DS_DEVICE drawn draw_of_list(const sampled_row& row, const list& found, int count, f64 least, const row_noise& noise) {
    drawn best = nobody();
#pragma unroll 1
    for (int i = team::thread(); i < count; i += DS_GROUP) {
        const f64 s = difference_of(row, found.at[i]);
        if (!(s >= least)) continue;
        const i64 index = found.at[i].index() - 1;
        const int j = int(index % 4);
        const f64 g = gumbel(word_of(noise.high_words(index / 4), j), word_of(noise.low_words(index / 4), j));
        best = higher()(best, {s + g, index});
    }
    return best;
}

// Whether v <= exp(s - best) may be, given the high word of v, with room for what is rounded. Where temperatures leave the range, it may.
struct contest {
    compute m, inverse;
    DS_DEVICE bool may_win(compute v, u32 high, f32 best) const {
        const f32 z = sub(rounded<f32>::of(mul(sub(v, m), inverse)), best);
        return !(fused(exponential_rough(z), 0x1.004p32f, 1.0f) < f32(high));
    }
};
DS_DEVICE contest contest_of(const sampled_row& row) {
    const bool is_ordinary = row.temperature < 0x1p100 && row.temperature > 0x1p-100;
    return {compute(row.m), is_ordinary ? rounded<compute>::of(1.0 / row.temperature) : compute(not_a_number())};
}

DS_DEVICE drawn draw_of_row(const sampled_row& row, const border& by, const row_noise& noise) {
    const contest test = contest_of(row);
    drawn best = nobody();
    f32 known = -f32(infinity());                       // what some lane of the warp has reached
#pragma unroll 1
    for (i64 base = 0; base < row.n; base += 4 * DS_GROUP) {
        const i64 first = base + 4 * team::thread();
        const four_words high = noise.high_words(first / 4);
        compute v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = first + j < row.n ? row.at(first + j) : compute(-infinity());
        u32 mask = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) mask |= u32(first + j < row.n && test.may_win(v[j], high.at[j], known) && by.keeps(v[j], first + j)) << j;
        if (mask) {
            const four_words low = noise.low_words(first / 4);
#pragma unroll 1
            for (int j = 0; j < 4; ++j) {
                const f64 s = row.difference(j == 0 ? v[0] : j == 1 ? v[1] : j == 2 ? v[2] : v[3]);
                if (!(mask >> j & 1) || !(s >= by.least)) continue;
                best = higher()(best, {s + gumbel(word_of(high, j), word_of(low, j)), first + j});
            }
        }
        known = group<32>::reduce(larger(known, rounded<f32>::of(best.score)), maximum());
    }
    return best;
}

// ------------------------------------------------------------------ a row
constexpr int MOST_LISTED = CAPACITY / 2;

// The index drawn of a row that has a distribution; `found` has its first elements, all that top_k keeps if `is_whole`.
DS_DEVICE drawn draw(const sampled_row& row, const list& found, bool is_whole, const sample_options& o, const row_noise& noise) {
    border by = {0, row.n, -infinity()};
    const weighed weight = {unit_of_mass(row.n)};
    if (!is_whole && o.top_k < f64(row.n)) by = border_of(row, by, counted(), u64(o.top_k));
    by.least = o.min_p >= 0x1p-1022 ? plain_log(o.min_p, 0.0) : -infinity();
    if (o.top_p < 1.0 && found.most > 0) {
        const masses m = masses_of(row, found, by.least);
        const u64 target = mass_to_reach(o.top_p, is_whole ? m.total : total_weight(row, by, weight));
        if (target <= m.total) return draw_of_list(row, found, count_to_reach(m, target), by.least, noise);
        by = border_of(row, by, weight, target);
    } else if (o.top_p < 1.0) {
        by = border_of(row, by, weight, mass_to_reach(o.top_p, total_weight(row, by, weight)));
    } else if (is_whole) {
        return draw_of_list(row, found, found.most, by.least, noise);
    }
    return draw_of_row(row, by, noise);
}

}  // namespace ds

// `options` are four float64 a row, `step` bytes apart. k0 .. k3 are the key; a row's number is that of its result.
extern "C" __global__ void __launch_bounds__(ds::BLOCK, DS_DIRECT ? 2 : 1)
    sample_rows(const char* x, const char* options, long long step, char* y, const __grid_constant__ ds::layout at, unsigned k0, unsigned k1,
                unsigned k2, unsigned k3) {
    using namespace ds;
    const inputs in = {x, nullptr, nullptr, 1.0};
    list found = list_of_team();
    for (i64 index = blockIdx.x; index < at.rows; index += gridDim.x) {
        const row from = row_of(in, at, index);
        const sample_options o = options_of(options + offset(at.outer, SCALE, index), step);
        const i64 place = offset(at.outer, Y, index);
        const u64 number = u64(place) / sizeof(i64);
        const bool greedy = o.temperature == 0.0, can_list = at.n < 0xfffffffe;
        const f64 most = greedy || o.top_k < 1.0 ? 1.0 : smaller(o.top_k, f64(at.n));
        const bool is_whole = can_list && most <= f64(MOST_LISTED);
        compute m;
        const bool has_nan = look(found, m, from, at.inner, is_whole ? int(most) : can_list && o.top_p < 1.0 ? MOST_LISTED : 0);
        const sampled_row mine = {from.x, &at.inner, at.n, f64(m), greedy ? 1.0 : o.temperature};
        drawn best = nobody();
        if (are_valid(o) && !has_nan && m != compute(-infinity()) && (greedy || m != compute(infinity()))) {
            if (!greedy) best = draw(mine, found, is_whole, o, {k0, k1, u32(number) ^ k2, u32(number >> 32) ^ k3});
            else best = {0.0, is_whole ? found.at[0].index() - 1 : index_of_equal(mine, order_of(m), 1)};
        }
        best = team::reduce(best, higher());
        if (team::thread() == 0) store(y + place, best.index);
    }
}
