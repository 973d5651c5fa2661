// Weights that are kept in bfloat16: the upper half of a float32, so that widening is a shift and exact.
#pragma once
#include "../packed_weights/codes.h"

typedef uint16_t half_at __attribute__((vector_size(W * 2), aligned(2), may_alias));
typedef uint32_t uvec __attribute__((vector_size(W * 4)));

static inline vec get(const uint16_t* p) {
    return reinterpret_cast<vec>(__builtin_convertvector(*reinterpret_cast<const half_at*>(p), uvec) << 16);
}
static inline wide widened(const uint16_t* p) {
#if defined(__AVX512F__)
    return reinterpret_cast<wide>(get(p));
#else
    return by_parts([p](int i) { return get(p + i * W); });
#endif
}
static inline float widened_one(uint16_t half) {
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

// A matrix [O, I] from output `first` on; the members are those of the other forms.
struct Bfloats {
    static constexpr bool SCALED = false;
    const uint16_t* at_first;
    i64 step;
    Bfloats(const uint16_t* numbers, i64 first, i64 I) : at_first(numbers + first * I), step(I) {}
    static i64 rows(i64 O) { return O; }
    template <int OUT>
    void load(i64 i, wide* w) const {
        for (int o = 0; o < OUT; ++o) w[o] = widened(at_first + o * step + i);
    }
    template <int OUT>
    void fetch(i64 i) const {
        for (int o = 0; o < OUT; ++o)
            for (int line = 0; line < 2; ++line) __builtin_prefetch(at_first + (OUT + o) * step + i + 32 * line, 0, 2);
    }
    wide one(i64 i) const { return widened(at_first + i); }
    float at(i64 o, i64 i) const { return widened_one(at_first[o * step + i]); }
};
