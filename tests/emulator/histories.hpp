// histories.hpp - a record for each byte of a memory, kept for whole words where nothing finer is needed.
#pragma once
#include <cstdint>

// Record has is_split() and mark_split(): a word whose bytes have records of their own.
template <class Record> class Histories {
public:
    static uint64_t bytes_for(uint64_t count) { return count / 4 * sizeof(Record) + count * sizeof(Record); }
    void place(void* storage, uint64_t count) {
        words = (Record*)storage;
        bytes = words + count / 4;
    }

    // Calls visit(record) for all bytes of an access. Nearly all words are only touched as a whole.
    template <class Visit> void visit(uint64_t offset, unsigned count, const Visit& visit) {
        while (count) {
            Record& word = words[offset / 4];
            if (!word.is_split()) {
                if (offset % 4 == 0 && count >= 4) {
                    visit(word);
                    offset += 4;
                    count -= 4;
                    continue;
                }
                for (uint64_t i = offset / 4 * 4; i < offset / 4 * 4 + 4; ++i) bytes[i] = word;
                word.mark_split();
            }
            visit(bytes[offset]);
            ++offset;
            --count;
        }
    }
    // Calls clear(first record, number of records) for what a range of bytes covers.
    template <class Clear> void clear(uint64_t start, uint64_t count, const Clear& clear) {
        clear(words + start / 4, (count + 3) / 4);
        clear(bytes + start, count);
    }

private:
    Record* words = nullptr;
    Record* bytes = nullptr;
};
