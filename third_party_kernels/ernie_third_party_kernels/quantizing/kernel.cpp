// Quantized values and scales of a matrix [O, I] in bfloat16 or float32, as public files have it, and what quantization changes:
// an output is read twice, once for its scales and once, from the cache, for its values. The bits are those of numpy: one
// division, one rounding to even. They do not depend on the threads.
#include "../bfloat16_weights/bfloats.h"

// Values that are worked on together: a few arrays of so many stay in the nearest cache.
constexpr i64 PIECE = 512;
// Adding it and taking it away rounds a float below 2^22 to an integer, half to even.
constexpr float MAGIC = 12582912.0f;

typedef float eight_floats __attribute__((vector_size(32), aligned(4), may_alias));
typedef double eight_doubles __attribute__((vector_size(64)));

struct Sums {
    eight_doubles signal = {}, noise = {};
    uint32_t largest = 0;  // bits of a magnitude
};

// The largest magnitude, as bits: those of NaN are above those of infinity, and those above all others.
static float highest(const uint16_t* w, i64 n) {
    uint16_t most = 0;
    for (i64 i = 0; i < n; ++i) {
        const uint16_t bits = w[i] & 0x7FFF;
        most = bits > most ? bits : most;
    }
    return widened_one(most);
}
static uint32_t highest_bits(const float* w, i64 n) {
    uint32_t most = 0;
    for (i64 i = 0; i < n; ++i) {
        uint32_t bits;
        std::memcpy(&bits, w + i, 4);
        bits &= 0x7FFFFFFF;
        most = bits > most ? bits : most;
    }
    return most;
}
static float highest(const float* w, i64 n) {
    const uint32_t bits = highest_bits(w, n);
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

static void widen(const uint16_t* w, i64 n, float* out) {
    for (i64 i = 0; i < n; ++i) out[i] = widened_one(w[i]);
}
static void widen(const float* w, i64 n, float* out) { std::memcpy(out, w, sizeof(float) * static_cast<size_t>(n)); }

// Codes of n weights, and their values without the scale.
static void rounded(const float* w, i64 n, float scale, float top, int8_t* codes, float* back) {
    for (i64 i = 0; i < n; ++i) {
        float q = (w[i] / scale + MAGIC) - MAGIC;
        q = q > top ? top : q;
        q = q < -top ? -top : q;
        back[i] = q;
        codes[i] = static_cast<int8_t>(q);
    }
}
static void counted(const float* w, i64 n, float scale, const float* middles, int8_t* codes, float* back) {
    int32_t above[PIECE];
    float ratio[PIECE];
    for (i64 i = 0; i < n; ++i) above[i] = 0, ratio[i] = w[i] / scale;
    for (int m = 0; m < 15; ++m)
        for (i64 i = 0; i < n; ++i) above[i] += ratio[i] > middles[m];
    for (i64 i = 0; i < n; ++i) codes[i] = static_cast<int8_t>(above[i] - 8), back[i] = NF4[above[i]];
}

// `back` becomes the dequantized weights and then what they differ by, each rounded to a float.
static void compare(const float* w, i64 n, float scale, float* back, Sums& sums) {
    for (i64 i = 0; i < n; ++i) back[i] *= scale;
    __asm__ volatile("" : : "r"(back) : "memory");  // else both steps may become one, which rounds once
    for (i64 i = 0; i < n; ++i) back[i] -= w[i];
    const uint32_t most = highest_bits(back, n);
    sums.largest = most > sums.largest ? most : sums.largest;
    i64 i = 0;
    for (; i + 8 <= n; i += 8) {
        const eight_doubles a = __builtin_convertvector(*reinterpret_cast<const eight_floats*>(w + i), eight_doubles);
        const eight_doubles b = __builtin_convertvector(*reinterpret_cast<const eight_floats*>(back + i), eight_doubles);
        sums.signal += a * a, sums.noise += b * b;
    }
    for (; i < n; ++i) {
        sums.signal[0] += static_cast<double>(w[i]) * w[i];
        sums.noise[0] += static_cast<double>(back[i]) * back[i];
    }
}

// What all outputs share. kind: 0 int8, 1 int4, 2 nf4; the last two have two outputs to a byte.
struct Job {
    i64 I, group;
    int kind;
    const float* middles;
};

// One output: its scales, and its codes into a row of bytes, or into the low or the high half of each.
template <class Weight>
static void one_output(const Job& j, const Weight* w, int half, int8_t* values, float* scales, Sums& sums) {
    const float top = j.kind == 0 ? 127.0f : j.kind == 1 ? 7.0f : 1.0f;
    const i64 step = j.group ? j.group : j.I;
    for (i64 begin = 0; begin < j.I; begin += step) {
        const i64 end = begin + step < j.I ? begin + step : j.I;
        float scale = highest(w + begin, end - begin) / top;
        if (scale == 0) scale = 1;
        *scales++ = scale;
        for (i64 at = begin; at < end; at += PIECE) {
            const i64 n = end - at < PIECE ? end - at : PIECE;
            float wide[PIECE], back[PIECE];
            int8_t codes[PIECE];
            widen(w + at, n, wide);
            if (j.kind == 2)
                counted(wide, n, scale, j.middles, codes, back);
            else
                rounded(wide, n, scale, top, codes, back);
            int8_t* out = values + at;
            if (j.kind == 0)
                std::memcpy(out, codes, static_cast<size_t>(n));
            else if (half == 0)
                for (i64 i = 0; i < n; ++i) out[i] = codes[i] & 15;
            else
                for (i64 i = 0; i < n; ++i) out[i] = static_cast<int8_t>(out[i] | (static_cast<uint8_t>(codes[i]) << 4));
            compare(wide, n, scale, back, sums);
        }
    }
}

template <class Weight>
static void all_outputs(const Job& j, const Weight* w, i64 O, int8_t* values, float* scales, double* errors, int threads) {
    const i64 groups = j.group ? (j.I + j.group - 1) / j.group : 1, each = j.kind == 0 ? 1 : 2;
    share_out((O + each - 1) / each, threads, [&](i64 row) {
        Sums sums;
        for (i64 o = row * each; o < O && o < (row + 1) * each; ++o)
            one_output(j, w + o * j.I, static_cast<int>(o - row * each), values + row * j.I, scales + o * groups, sums);
        double signal = 0, noise = 0;
        for (int i = 0; i < 8; ++i) signal += sums.signal[i], noise += sums.noise[i];
        float largest;
        std::memcpy(&largest, &sums.largest, 4);
        errors[3 * row] = signal, errors[3 * row + 1] = noise, errors[3 * row + 2] = largest;
    });
}

// weight [O, I]: bfloat16 (wide 0) or float32 (wide 1). values: a row for each output, or for two. scales [O, G]. errors: of each
// row of values, sum of squares of the weights, of the errors, and the largest error.
EXPORT void quantize_outputs(int kind, int wide, const void* weight, i64 O, i64 I, i64 group, const float* middles,
                             int8_t* values, float* scales, double* errors, int threads) {
    const Job j = {I, group, kind, middles};
    if (wide)
        all_outputs(j, static_cast<const float*>(weight), O, values, scales, errors, threads);
    else
        all_outputs(j, static_cast<const uint16_t*>(weight), O, values, scales, errors, threads);
}
