// Products with weights that are convolutional codes, decoded in registers. Rows of codes lie by inputs, outputs side by side:
// a register has one word of each of W outputs, a shift and a mask (or a permutation of a table) make a weight of each. The
// bits do not depend on the threads. float32 throughout: no rounding of x.
#include "../blocks.h"

constexpr i64 GROUP = 64, TILE_OUTPUTS = 64, MOST_OUTPUTS = 256;

// Where the codes of one matrix are. `step`: from one row of codes to the next, and of local scales.
struct Stored {
    const void* codes;
    const float* super;
    const uint8_t* local;
    const float* code_scale;
    const float* code_zp;
    i64 step, local_step;
};

template <class Narrow>
static inline ivec widened(const Narrow* p) {
    typedef Narrow narrow_at __attribute__((vector_size(W * sizeof(Narrow)), aligned(sizeof(Narrow)), may_alias));
    return __builtin_convertvector(*reinterpret_cast<const narrow_at*>(p), ivec);
}

#if defined(__GNUC__) && !defined(__clang__) && (defined(__AVX512F__) || defined(__AVX2__))
// window - 4 of the lowest three bits; the permutation looks at no bit beyond the fourth, under which the table repeats
static inline vec three_bits(ivec bits) {
#if defined(__AVX512F__)
    const vec table = {-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3};
#else
    const vec table = {-4, -3, -2, -1, 0, 1, 2, 3};
#endif
    return __builtin_shuffle(table, bits);
}
#else
static inline vec three_bits(ivec bits) { return __builtin_convertvector(bits & 7, vec) - 4.0f; }
#endif

// 2.5 bits: ten words of 16 bits for 64 weights and their scale.
struct Words {
    static constexpr i64 ROWS = 10;
    typedef uint16_t Code;

    // each(place of a chain, input, W values) for the inputs of group g at outputs o .. o + W
    template <class Each>
    static inline void group(const Stored& s, i64 g, i64 o, const Each& each) {
        const uint16_t* row = static_cast<const uint16_t*>(s.codes) + g * ROWS * s.step + o;
        for (int word = 0; word < 9; ++word, row += s.step) {
            const ivec bits = widened(row);
            each(0, word * 7, three_bits(bits >> 13));
            each(1, word * 7 + 1, three_bits(bits >> 11));
            each(2, word * 7 + 2, three_bits(bits >> 9));
            each(3, word * 7 + 3, three_bits(bits >> 6));
            each(0, word * 7 + 4, three_bits(bits >> 4));
            each(1, word * 7 + 5, three_bits(bits >> 2));
            each(2, word * 7 + 6, three_bits(bits));
        }
        each(3, 63, three_bits(widened(row) >> 13));
    }

    static inline vec scale(const Stored& s, i64 g, i64 o) {
        const uint16_t* last = static_cast<const uint16_t*>(s.codes) + (g * ROWS + 9) * s.step + o;
        return __builtin_convertvector(widened(last) & 8191, vec) * get(s.super + o);
    }
};

// 2.06 bits: a byte for four weights, four bits for the scale of 64.
struct Clusters {
    static constexpr i64 ROWS = 16;
    typedef uint8_t Code;

    template <class Each>
    static inline void group(const Stored& s, i64 g, i64 o, const Each& each) {
        const uint8_t* row = static_cast<const uint8_t*>(s.codes) + g * ROWS * s.step + o;
        const vec slope = get(s.code_scale + o), start = get(s.code_zp + o);
        for (int byte = 0; byte < ROWS; ++byte, row += s.step) {
            const vec spread = __builtin_convertvector(widened(row), vec) * slope + start + 0.5f;
            ivec code = __builtin_convertvector(spread, ivec);
            code += __builtin_convertvector(code, vec) > spread;  // towards minus infinity
            each(0, byte * 4, __builtin_convertvector((code >> 9) & 63, vec) - 32.0f);
            each(1, byte * 4 + 1, __builtin_convertvector((code >> 6) & 63, vec) - 32.0f);
            each(2, byte * 4 + 2, __builtin_convertvector((code >> 3) & 63, vec) - 32.0f);
            each(3, byte * 4 + 3, __builtin_convertvector(code & 63, vec) - 32.0f);
        }
    }

    static inline vec scale(const Stored& s, i64 g, i64 o) {
        const ivec pair = widened(s.local + g / 2 * s.local_step + o);
        return __builtin_convertvector(g % 2 ? pair & 15 : pair >> 4, vec) * get(s.super + o);
    }
};

// Fewer than W outputs at the end of a matrix: a copy of their codes, as registers would read beyond.
template <class Form>
struct Rest {
    typename Form::Code codes[Form::ROWS * W];
    float super[W], slope[W], start[W];
    uint8_t local[W];

    Stored of(const Stored& s, i64 g, i64 o, i64 count) {
        for (int j = 0; j < W; ++j) {
            const i64 at = o + (j < count ? j : 0);
            for (int r = 0; r < Form::ROWS; ++r)
                codes[r * W + j] = static_cast<const typename Form::Code*>(s.codes)[(g * Form::ROWS + r) * s.step + at];
            super[j] = s.super[at];
            if (s.local) {
                const uint8_t pair = s.local[g / 2 * s.local_step + at];
                local[j] = g % 2 ? pair << 4 : pair;
                slope[j] = s.code_scale[at];
                start[j] = s.code_zp[at];
            }
        }
        return Stored{codes, super, s.local ? local : nullptr, slope, start, W, W};
    }
};

// y[o .. o + W] += x W' over the inputs of one group
template <class Form>
static inline vec group_sum(const Stored& s, i64 g, i64 o, const float* x) {
    vec sums[4] = {};
    Form::group(s, g, o, [&](int chain, int i, vec value) { sums[chain] += all(x[i]) * value; });
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) * Form::scale(s, g, o);
}

template <class Form>
static void one_row(const Stored& s, const float* x, i64 I, i64 first, i64 stop, float* y) {
    const i64 groups = (I + GROUP - 1) / GROUP;
    for (i64 o = first; o < stop; ++o) y[o] = 0.0f;
    for (i64 g = 0; g < groups; ++g) {
        float last[GROUP] = {};
        const float* part = x + g * GROUP;
        if ((g + 1) * GROUP > I) {
            std::memcpy(last, part, sizeof(float) * (I - g * GROUP));
            part = last;
        }
        i64 o = first;
        for (; o + W <= stop; o += W) {
            if (g + 1 < groups)
                for (int r = 0; r < Form::ROWS; ++r)
                    __builtin_prefetch(static_cast<const typename Form::Code*>(s.codes) + ((g + 1) * Form::ROWS + r) * s.step + o);
            put(y + o, get(y + o) + group_sum<Form>(s, g, o, part));
        }
        if (o < stop) {
            Rest<Form> rest;
            const vec sum = group_sum<Form>(rest.of(s, g, o, stop - o), 0, 0, part);
            for (i64 j = 0; o + j < stop; ++j) y[o + j] += sum[j];
        }
    }
}

// W' of group g at outputs o .. o + count, [64, TILE_OUTPUTS]; columns beyond count, up to a whole register, are anything
template <class Form>
static void decoded(const Stored& s, i64 g, i64 o, i64 count, float* tile) {
    for (i64 c = 0; c < count; c += W) {
        Rest<Form> rest;
        const bool whole = c + W <= count;
        const Stored from = whole ? s : rest.of(s, g, o + c, count - c);
        const i64 at = whole ? o + c : 0, group = whole ? g : 0;
        const vec scale = Form::scale(from, group, at);
        Form::group(from, group, at, [&](int, int i, vec value) { put(tile + i * TILE_OUTPUTS + c, value * scale); });
    }
}

template <class Form>
static void some_rows(const Stored& s, const float* x, i64 rows, i64 I, i64 first, i64 stop, float* y, i64 O) {
    alignas(64) float tile_[GROUP * TILE_OUTPUTS], sums[TILE_OUTPUTS * 8];
    for (i64 o = first; o < stop; o += TILE_OUTPUTS) {
        const i64 count = o + TILE_OUTPUTS < stop ? TILE_OUTPUTS : stop - o, wide = (count + W - 1) / W * W;
        for (i64 g = 0; g * GROUP < I; ++g) {
            const i64 depth = (g + 1) * GROUP < I ? GROUP : I - g * GROUP;
            decoded<Form>(s, g, o, count, tile_);
            if (wide == count) {
                multiply(x + g * GROUP, I, 1, tile_, TILE_OUTPUTS, y + o, O, rows, wide / W, depth, g > 0);
                continue;
            }
            for (i64 r = 0; r < rows; r += 8) {  // registers would write beyond the end of a row
                const i64 some = r + 8 < rows ? 8 : rows - r;
                multiply(x + r * I + g * GROUP, I, 1, tile_, TILE_OUTPUTS, sums, TILE_OUTPUTS, some, wide / W, depth, false);
                for (i64 a = 0; a < some; ++a)
                    for (i64 j = 0; j < count; ++j) {
                        float* place = y + (r + a) * O + o + j;
                        *place = sums[a * TILE_OUTPUTS + j] + (g ? *place : 0.0f);
                    }
            }
        }
    }
}

static Stored at(const Stored& s, i64 expert, i64 code_size, i64 rows, i64 local_rows, i64 O) {
    Stored e = s;
    e.codes = static_cast<const char*>(s.codes) + expert * rows * s.step * code_size;
    e.super += expert * O;
    if (s.local) {
        e.local += expert * local_rows * s.local_step;
        e.code_scale += expert * O;
        e.code_zp += expert * O;
    }
    return e;
}

template <class Form>
static Stored expert_of(const Stored& s, i64 expert, i64 I, i64 O) {
    const i64 groups = (I + GROUP - 1) / GROUP;
    return at(s, expert, sizeof(typename Form::Code), Form::ROWS * groups, (groups + 1) / 2, O);
}

template <class Form>
static void product(const Stored& s, const float* x, const i64* experts, const i64* starts, i64 parts, i64 I, i64 O, float* y,
                    int threads) {
    const i64 fair = O / (4 * threads) / TILE_OUTPUTS * TILE_OUTPUTS;
    const i64 width = fair < TILE_OUTPUTS ? TILE_OUTPUTS : (fair > MOST_OUTPUTS ? MOST_OUTPUTS : fair);
    const i64 tiles = (O + width - 1) / width;
    share_out(parts * tiles, threads, [&](i64 item) {
        const i64 p = item / tiles, first = item % tiles * width, stop = first + width < O ? first + width : O;
        const Stored e = expert_of<Form>(s, experts ? experts[p] : 0, I, O);
        const i64 rows = starts[p + 1] - starts[p];
        if (rows == 1)
            one_row<Form>(e, x + starts[p] * I, I, first, stop, y + starts[p] * O);
        else
            some_rows<Form>(e, x + starts[p] * I, rows, I, first, stop, y + starts[p] * O, O);
    });
}

template <class Form>
static void numbers(const Stored& s, i64 E, i64 I, i64 O, float* w, int threads) {
    const i64 tiles = (O + TILE_OUTPUTS - 1) / TILE_OUTPUTS;
    share_out(E * tiles, threads, [&](i64 item) {
        const i64 e = item / tiles, o = item % tiles * TILE_OUTPUTS, count = o + TILE_OUTPUTS < O ? TILE_OUTPUTS : O - o;
        const Stored own = expert_of<Form>(s, e, I, O);
        alignas(64) float tile_[GROUP * TILE_OUTPUTS];
        for (i64 g = 0; g * GROUP < I; ++g) {
            decoded<Form>(own, g, o, count, tile_);
            float* to = w + (e * O + o) * I + g * GROUP;
            const i64 depth = I - g * GROUP;
            if (depth >= GROUP) {
                turned(tile_, TILE_OUTPUTS, GROUP, count, to, I, 1.0f);
                continue;
            }
            for (i64 j = 0; j < count; ++j)
                for (i64 i = 0; i < depth; ++i) to[j * I + i] = tile_[i * TILE_OUTPUTS + j];
        }
    });
}

// form: 0 words, 1 clusters. experts: of each part, or null for one matrix; part p has rows starts[p] .. starts[p + 1).
EXPORT void code_product(int form, const Stored* stored, const float* x, const i64* experts, const i64* starts, i64 parts, i64 I,
                         i64 O, float* y, int threads) {
    if (form == 0) product<Words>(*stored, x, experts, starts, parts, I, O, y, threads);
    if (form == 1) product<Clusters>(*stored, x, experts, starts, parts, I, O, y, threads);
}

// w [E, O, I]
EXPORT void code_numbers(int form, const Stored* stored, i64 E, i64 I, i64 O, float* w, int threads) {
    if (form == 0) numbers<Words>(*stored, E, I, O, w, threads);
    if (form == 1) numbers<Clusters>(*stored, E, I, O, w, threads);
}
