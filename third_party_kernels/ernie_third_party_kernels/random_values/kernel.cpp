// Random numbers by position: Philox-4x64 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011),
// whose 256 bits for a counter are the 16-bit numbers of 16 positions, each of which chooses a value of a table.
#include "../common.h"

// Positions of one item of work, and of one counter.
constexpr i64 PIECE = 1 << 16, LANES = 16;

struct Key {
    uint64_t low, high;
};

// numpy counts before it draws: its counter c draws with c + 1
static inline void numbers_of(uint64_t counter, Key key, uint16_t* out) {
    uint64_t a = counter + 1, b = 0, c = 0, d = 0;
    for (int round = 0; round < 10; ++round) {
        const unsigned __int128 first = static_cast<unsigned __int128>(0xD2E7470EE14C6C93u) * a;
        const unsigned __int128 second = static_cast<unsigned __int128>(0xCA5A826395121157u) * c;
        a = static_cast<uint64_t>(second >> 64) ^ b ^ key.low;
        b = static_cast<uint64_t>(second);
        c = static_cast<uint64_t>(first >> 64) ^ d ^ key.high;
        d = static_cast<uint64_t>(first);
        key.low += 0x9E3779B97F4A7C15u;
        key.high += 0xBB67AE8584CAA73Bu;
    }
    const uint64_t words[4] = {a, b, c, d};
    for (int w = 0; w < 4; ++w)
        for (int s = 0; s < 4; ++s) out[4 * w + s] = static_cast<uint16_t>(words[w] >> (16 * s));
}

template <class Value>
static void draw(Key key, const Value* table, i64 start, i64 count, Value* out, int threads) {
    share_out((count + PIECE - 1) / PIECE, threads, [&](i64 item) {
        const i64 end = start + ((item + 1) * PIECE < count ? (item + 1) * PIECE : count);
        for (i64 at = start + item * PIECE; at < end;) {
            uint16_t numbers[LANES];
            numbers_of(static_cast<uint64_t>(at / LANES), key, numbers);
            const i64 skip = at % LANES, some = end - at < LANES - skip ? end - at : LANES - skip;
            Value* to = out + at - start;
            if (some == LANES)
                for (i64 i = 0; i < LANES; ++i) to[i] = table[numbers[i]];
            else
                for (i64 i = 0; i < some; ++i) to[i] = table[numbers[skip + i]];
            at += some;
        }
    });
}

// Positions start .. start + count of the values of `table`, 65536 of 2 bytes (wide 0) or of 4 (wide 1).
EXPORT void draw_positions(uint64_t low, uint64_t high, int wide, const void* table, i64 start, i64 count, void* out,
                           int threads) {
    const Key key = {low, high};
    if (wide)
        draw(key, static_cast<const uint32_t*>(table), start, count, static_cast<uint32_t*>(out), threads);
    else
        draw(key, static_cast<const uint16_t*>(table), start, count, static_cast<uint16_t*>(out), threads);
}
