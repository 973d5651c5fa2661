// The processor's matrix tiles (AMX): eight registers of 16 rows of 64 bytes, and sums of products of bytes in them. In words of
// the assembler, as packed_weights/codes.h has them: the library is compiled for processors without tiles too. The number of a
// tile is part of the instruction.
#pragma once
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"
#include <immintrin.h>

// Whether the processor has tiles of bytes and Linux lets this process use them, which it has to be asked for.
static inline bool has_tiles() {
#if defined(__linux__)
    static const bool can = [] {
        constexpr long ask = 0x1023, tile_data = 18;
        unsigned a, b, c, d;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 25 & 1)) return false;
        return syscall(SYS_arch_prctl, ask, tile_data) == 0;
    }();
    return can;
#else
    return false;
#endif
}

// The same for tiles of bfloat16.
static inline bool has_bfloat_tiles() {
    static const bool can = [] {
        unsigned a, b, c, d;
        return has_tiles() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1);
    }();
    return can;
}

// Shapes of the tiles: those before `first_whole` have `count` rows, the others 16.
struct alignas(64) Shapes {
    uint8_t palette = 1, start = 0, unused[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
    Shapes(i64 count, int first_whole) {
        for (int t = 0; t < 8; ++t) bytes[t] = 64, rows[t] = static_cast<uint8_t>(t < first_whole ? count : 16);
    }
    void use() const { __asm__ volatile("ldtilecfg %0" : : "m"(*this)); }
};

static inline void release_tiles() { __asm__ volatile("tilerelease" : : :); }
template <int... T>
static inline void zero_tiles() {
    (..., [] { __asm__ volatile("tilezero %%tmm%c0" : : "i"(T)); }());
}
template <int T>
static inline void load_tile(const void* from, i64 step) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(step), "i"(T) : "memory");
}
template <int T>
static inline void store_tile(int32_t* to, i64 step = 64) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(step), "i"(T) : "memory");
}
// SUMS += ROWS, bytes with a sign, times CODES without
template <int SUMS, int ROWS, int CODES>
static inline void add_tiles() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(ROWS), "i"(CODES));
}
// The same, both with a sign.
template <int SUMS, int ROWS, int COLUMNS>
static inline void add_signed_tiles() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(ROWS), "i"(COLUMNS));
}
// The same for pairs of bfloat16 numbers; sums are float32.
template <int SUMS, int ROWS, int COLUMNS>
static inline void add_bfloat_tiles() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(ROWS), "i"(COLUMNS));
}
