// visible.hpp - checks of what attention.hpp takes for visible: panels of keys of some rows, against every pair of query and key.
#pragma once
#include "attention.hpp"
#include "tiles.hpp"

namespace {

struct random_visibility {
    attention_task t;
    int64_t length, offset;
    std::vector<char> blocks;

    explicit random_visibility(generator& random) {
        const auto up_to = [&](ptrdiff_t n) { return ptrdiff_t(random.bits() % uint64_t(n + 1)); };
        t.heads_k = 1 + up_to(1);
        t.group = 1 + up_to(2);
        t.queries = 1 + up_to(50);
        t.keys = up_to(700);
        length = up_to(t.keys);
        if (up_to(2) == 0) t.lengths = &length;
        offset = up_to(3) ? up_to(800) - 100 : up_to(1) ? int64_t(1) << 40 : -(int64_t(1) << 40);
        t.offsets = &offset;
        t.left = up_to(1) ? -1 : up_to(200);
        t.right = up_to(1) ? -1 : up_to(3) ? 0 : up_to(100);
        if (up_to(1)) return;
        t.block_q = 1 + up_to(20);
        t.block_k = 1 + up_to(90);
        const ptrdiff_t rows = (t.queries + t.block_q - 1) / t.block_q, cols = (t.keys + t.block_k - 1) / t.block_k;
        for (ptrdiff_t i = 0; i < t.heads_q() * rows * cols; ++i) blocks.push_back(char(up_to(3) == 0));
        blocks.push_back(1);            // of no head; keeps the pointer valid where there is no key
        t.base[AT_BLOCK_MASK] = blocks.data();
        t.head[AT_BLOCK_MASK] = rows * cols;
        t.row[AT_BLOCK_MASK] = cols;
        t.item[AT_BLOCK_MASK] = 1;
    }
    bool in_range(ptrdiff_t i, ptrdiff_t j) const {
        const ptrdiff_t at = i + offset;
        return j < (t.lengths ? length : t.keys) && (t.left < 0 || j >= at - t.left) && (t.right < 0 || j <= at + t.right);
    }
    bool in_block(ptrdiff_t h, ptrdiff_t i, ptrdiff_t j) const {
        return blocks.empty() || blocks[size_t(h * t.head[AT_BLOCK_MASK] + i / t.block_q * t.row[AT_BLOCK_MASK] + j / t.block_k)];
    }
};

// A panel that some row sees is found. One that none sees is found only where both a row's
// range and a visible block of one of the queries, of any of their heads, reach it.
template <class C> void check_visible_panels(long share) {
    const title name("visible_panels against every pair", dtype_name<C>());
    group g(name.text);
    generator random{26};
    for (long round = 0; round < 400 / share; ++round) {
        const random_visibility v(random);
        const attention_task& t = v.t;
        const sequence q(t, 0);
        const ptrdiff_t rows = t.queries * t.group, hk = ptrdiff_t(random.bits() % uint64_t(t.heads_k));
        const ptrdiff_t first = ptrdiff_t(random.bits() % uint64_t(rows)), last = first + 1 + ptrdiff_t(random.bits() % uint64_t(rows - first));
        const ptrdiff_t short_by = random.bits() % 3 ? 0 : ptrdiff_t(random.bits() % 50);
        for (ptrdiff_t j0 = 0; j0 < t.keys; j0 += KEY_BLOCK<C>) {
            const ptrdiff_t j1 = std::min<ptrdiff_t>(j0 + KEY_BLOCK<C>, std::max<ptrdiff_t>(t.keys - short_by, j0 + 1));
            const uint64_t found = visible_panels<C>(q, hk, first, last, j0, j1);
            uint64_t seen = 0, possible = 0;
            for (ptrdiff_t j = j0; j < j1; ++j) {
                const uint64_t bit = uint64_t(1) << (j - j0) / PANEL<C>;
                bool near = false, block = false;
                for (ptrdiff_t r = first; r < last; ++r) {
                    const ptrdiff_t h = hk * t.group + r % t.group, i = r / t.group;
                    const bool a = v.in_range(i, j), b = v.in_block(h, i, j);
                    near |= a;
                    for (ptrdiff_t any = 0; any < t.group; ++any) block |= v.in_block(hk * t.group + any, i, j);
                    if (a && b) seen |= bit;
                }
                if (near && block) possible |= bit;
            }
            g.that((seen & ~found) == 0, "rows %td to %td, keys from %td: panels %#llx are seen, %#llx found", first, last, j0, (unsigned long long)seen, (unsigned long long)found);
            g.that((found & ~possible) == 0, "rows %td to %td, keys from %td: panels %#llx found, at most %#llx seen", first, last, j0, (unsigned long long)found, (unsigned long long)possible);
        }
    }
}

template <class C> void check_runs() {
    const title name("runs_of", dtype_name<C>());
    group g(name.text);
    generator random{27};
    for (int round = 0; round < 500; ++round) {
        const uint64_t all = (uint64_t(1) << PANELS<C>) - 1, alternating = 0x5555555555555555u & all;
        const uint64_t panels = round == 0 ? all : round == 1 ? alternating : round == 2 ? 0 : random_panels(PANELS<C>, random);
        const key_runs got = runs_of<C>(panels), want = plain_runs<C>(panels);
        bool right = got.count == want.count;
        for (int i = 0; right && i < want.count; ++i) right = got.start[i] == want.start[i] && got.stop[i] == want.stop[i];
        g.that(right, "panels %#llx", (unsigned long long)panels);
    }
}

}  // namespace
