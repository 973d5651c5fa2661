// How codes become floats, 16 at a time: one small function per instruction set, and what holds for all of them.
#pragma once
#include "../common.h"
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
// sums += four products of bytes of `codes` (no sign) and of `parts` (signed), in each of 16 lanes. In words of the processor, as
// the library is compiled for those without the instruction too, and as GCC copies sums around its own name for it.
static inline void add_products(__m512i& sums, __m512i codes, __m512i parts) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(codes), "v"(parts));
}
#endif

// Outputs that are worked on together: enough streams and sums to keep the processor busy, few enough for its registers.
#if defined(__AVX512F__)
enum { OUTPUTS = 4, MOST_ROWS = 4 };
#else
enum { OUTPUTS = 2, MOST_ROWS = 2 };
#endif
// Outputs per item of work of a thread: a multiple of this; even.
enum { TILE = 32 };

static constexpr float NF4[16] = {-1.0f,
                              -0.6961928009986877f,
                              -0.5250730514526367f,
                              -0.39491748809814453f,
                              -0.28444138169288635f,
                              -0.18477343022823334f,
                              -0.09105003625154495f,
                              0.0f,
                              0.07958029955625534f,
                              0.16093020141124725f,
                              0.24611230194568634f,
                              0.33791524171829224f,
                              0.44070982933044434f,
                              0.5626170039176941f,
                              0.7229568362236023f,
                              1.0f};

// by the four bits of a code, which are the index for 0 .. 7 and index - 16 for -8 .. -1
static const float INT4_BY_CODE[16] = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
static const float NF4_BY_CODE[16] = {NF4[8], NF4[9], NF4[10], NF4[11], NF4[12], NF4[13], NF4[14], NF4[15],
                                      NF4[0], NF4[1], NF4[2],  NF4[3],  NF4[4],  NF4[5],  NF4[6],  NF4[7]};

#if defined(__AVX512F__)
static inline wide widened(const int8_t* p) {
    return (wide)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// what the low and the high four bits of 16 bytes stand for; the permutation looks at the lowest four bits of its index alone
template <bool LEVELS>
static inline void halves(const int8_t* p, wide* low, wide* high) {
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512 table = _mm512_loadu_ps(LEVELS ? NF4_BY_CODE : INT4_BY_CODE);
    *low = (wide)_mm512_permutexvar_ps(both, table);
    *high = (wide)_mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), table);
}
#elif defined(__AVX2__)
static inline wide joined(__m256 a, __m256 b) { return {{reinterpret_cast<vec>(a), reinterpret_cast<vec>(b)}}; }
static inline __m256i eight_of(const int8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
static inline wide widened(const int8_t* p) {
    return joined(_mm256_cvtepi32_ps(eight_of(p)), _mm256_cvtepi32_ps(eight_of(p + 8)));
}
static inline __m256 level(__m256i code) {  // code + 8 in its lowest four bits: bit 3 chooses one of two tables of eight
    const __m256i index = _mm256_xor_si256(code, _mm256_set1_epi32(8));
    const __m256 below = _mm256_permutevar8x32_ps(_mm256_loadu_ps(NF4), index);
    const __m256 above = _mm256_permutevar8x32_ps(_mm256_loadu_ps(NF4 + 8), index);
    return _mm256_blendv_ps(below, above, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}
template <bool LEVELS>
static inline void halves(const int8_t* p, wide* low, wide* high) {
    const __m256i a = eight_of(p), b = eight_of(p + 8);
    if (LEVELS) {
        *low = joined(level(a), level(b));
        *high = joined(level(_mm256_srai_epi32(a, 4)), level(_mm256_srai_epi32(b, 4)));
    } else {
        const __m256i la = _mm256_srai_epi32(_mm256_slli_epi32(a, 28), 28), lb = _mm256_srai_epi32(_mm256_slli_epi32(b, 28), 28);
        *low = joined(_mm256_cvtepi32_ps(la), _mm256_cvtepi32_ps(lb));
        *high = joined(_mm256_cvtepi32_ps(_mm256_srai_epi32(a, 4)), _mm256_cvtepi32_ps(_mm256_srai_epi32(b, 4)));
    }
}
#else
static inline wide widened(const int8_t* p) {
    float v[16];
    for (int i = 0; i < 16; ++i) v[i] = static_cast<float>(p[i]);
    return load(v);
}
template <bool LEVELS>
static inline void halves(const int8_t* p, wide* low, wide* high) {
    float a[16], b[16];
    for (int i = 0; i < 16; ++i) {
        const int l = (p[i] & 15) ^ 8, h = ((p[i] >> 4) & 15) ^ 8;
        a[i] = LEVELS ? NF4[l] : static_cast<float>(l - 8);
        b[i] = LEVELS ? NF4[h] : static_cast<float>(h - 8);
    }
    *low = load(a), *high = load(b);
}
#endif

// Codes of consecutive outputs, `first` onwards, of one matrix.
struct Int8 {
    static constexpr bool SCALED = true;
    const int8_t* at_first;
    i64 step;
    Int8(const int8_t* codes, i64 first, i64 I) : at_first(codes + first * I), step(I) {}
    static i64 rows(i64 O) { return O; }
    template <int OUT>
    void load(i64 i, wide* w) const {
        for (int o = 0; o < OUT; ++o) w[o] = widened(at_first + o * step + i);
    }
    // towards the cache: the 64 bytes at i of the outputs that come next
    template <int OUT>
    void fetch(i64 i) const {
        for (int o = 0; o < OUT; ++o) __builtin_prefetch(at_first + (OUT + o) * step + i, 0, 2);
    }
    wide one(i64 i) const { return widened(at_first + i); }
    float at(i64 o, i64 i) const { return static_cast<float>(at_first[o * step + i]); }
};

template <bool LEVELS>
struct Halves {
    static constexpr bool SCALED = true;
    const int8_t* at_first;
    i64 step;
    bool odd;
    Halves(const int8_t* codes, i64 first, i64 I) : at_first(codes + first / 2 * I), step(I), odd(first & 1) {}
    static i64 rows(i64 O) { return (O + 1) / 2; }
    template <int OUT>
    void load(i64 i, wide* w) const {  // called with an even first output
        wide spare;
        for (int o = 0; o < OUT; o += 2) halves<LEVELS>(at_first + o / 2 * step + i, w + o, o + 1 < OUT ? w + o + 1 : &spare);
    }
    template <int OUT>
    void fetch(i64 i) const {
        for (int o = 0; o < OUT / 2; ++o) __builtin_prefetch(at_first + (OUT / 2 + o) * step + i, 0, 2);
    }
    wide one(i64 i) const {
        wide low, high;
        halves<LEVELS>(at_first + i, &low, &high);
        return odd ? high : low;
    }
    float at(i64 o, i64 i) const {
        o += odd;
        const int byte = at_first[o / 2 * step + i], code = ((o & 1 ? byte >> 4 : byte) & 15) ^ 8;
        return LEVELS ? NF4[code] : static_cast<float>(code - 8);
    }
};

// No codes: float32 itself, [O, I].
struct Floats {
    static constexpr bool SCALED = false;
    const float* at_first;
    i64 step;
    Floats(const int8_t* numbers, i64 first, i64 I) : at_first(reinterpret_cast<const float*>(numbers) + first * I), step(I) {}
    static i64 rows(i64 O) { return O; }
    template <int OUT>
    void load(i64 i, wide* w) const {
        for (int o = 0; o < OUT; ++o) w[o] = ::load(at_first + o * step + i);
    }
    template <int OUT>
    void fetch(i64) const {}  // long pieces, which the processor fetches by itself
    float at(i64 o, i64 i) const { return at_first[o * step + i]; }
};
