#include "profile.hpp"

#include <algorithm>

static constexpr uint64_t SECTOR = 32;
static constexpr uint32_t ALL_LANES = 0xffffffff;

static uint64_t place_key(const void* pc, unsigned bytes, bool write, bool shared) {
    return (uint64_t)(uintptr_t)pc << 8 | bytes << 2 | (unsigned)write << 1 | (unsigned)shared;
}

static unsigned distinct(uint64_t* values, unsigned count) {
    std::sort(values, values + count);
    return (unsigned)(std::unique(values, values + count) - values);
}

void Profile::note(const Thread& thread, const void* pc, uint64_t address, unsigned bytes, bool write, bool shared) {
    Site& site = sites[thread.warp][place_key(pc, bytes, write, shared)];
    const uint64_t turn = site.turns[thread.lane]++;
    while (site.first_turn + site.open.size() <= turn) site.open.push_back({pc, 0, bytes, write, shared, {}});
    Request& request = site.open[turn - site.first_turn];
    request.lanes |= 1u << thread.lane;
    request.address[thread.lane] = address;
    while (!site.open.empty() && site.open.front().lanes == ALL_LANES) {
        count(site.open.front());
        site.open.pop_front();
        ++site.first_turn;
    }
}

// Each sector that any lane touches is fetched once. At best, the distinct addresses would lie side by side.
static void count_sectors(const Profile::Request& request, EmulatorProfileRow& row) {
    uint64_t sectors[32 * 2], addresses[32];
    unsigned sector_count = 0, lanes = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
        if (!(request.lanes >> lane & 1)) continue;
        const uint64_t first = request.address[lane] / SECTOR, last = (request.address[lane] + request.bytes - 1) / SECTOR;
        sectors[sector_count++] = first;
        if (last != first) sectors[sector_count++] = last;
        addresses[lanes++] = request.address[lane];
    }
    row.units += distinct(sectors, sector_count);
    row.ideal += (distinct(addresses, lanes) * (uint64_t)request.bytes + SECTOR - 1) / SECTOR;
}

// 32 banks of 4 bytes serve one word each in a wavefront, to any number of lanes. Wide accesses go in parts of a warp: 128 bytes at a time.
static void count_wavefronts(const Profile::Request& request, EmulatorProfileRow& row) {
    const unsigned lanes_each = request.bytes <= 4 ? 32 : request.bytes <= 8 ? 16 : 8;
    for (unsigned start = 0; start < 32; start += lanes_each) {
        uint64_t words[32 * 2];
        unsigned count = 0, in_bank[32] = {};
        for (unsigned lane = start; lane < start + lanes_each; ++lane) {
            if (!(request.lanes >> lane & 1)) continue;
            const uint64_t first = request.address[lane] / 4, last = (request.address[lane] + request.bytes - 1) / 4;
            for (uint64_t word = first; word <= last; ++word) words[count++] = word;
        }
        if (!count) continue;
        count = distinct(words, count);
        for (unsigned i = 0; i < count; ++i) ++in_bank[words[i] % 32];
        row.units += *std::max_element(in_bank, in_bank + 32);
        row.ideal += 1;
    }
}

void Profile::count(const Request& request) {
    const auto [found, added] = row_index.try_emplace(place_key(request.pc, request.bytes, request.write, request.shared), all_rows.size());
    if (added) {
        EmulatorProfileRow row = {};
        row.pc = (uint64_t)request.pc;
        row.bytes = request.bytes;
        row.shared = request.shared;
        row.write = request.write;
        all_rows.push_back(row);
    }
    EmulatorProfileRow& row = all_rows[found->second];
    ++row.requests;
    if (request.shared) count_wavefronts(request, row);
    else count_sectors(request, row);
}

void Profile::finish_block() {
    for (auto& warp : sites) {
        for (const auto& entry : warp)
            for (const Request& request : entry.second.open) count(request);
        warp.clear();
    }
}
