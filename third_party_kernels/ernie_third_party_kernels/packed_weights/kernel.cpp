// Products with packed weights, W [O, I] by outputs: int8 codes, or two outputs 2j and 2j + 1 to a byte in four bits. A
// vector of codes is widened to float once and multiplied with several rows of x. The bits do not depend on the threads. float32 throughout: no rounding of x.
#include "../common.h"
#include "codes.h"

// One output tile: OUT consecutive outputs (the first one even in four bits) times ROWS rows.
template <class Form, int OUT, int ROWS>
static void tile(const Form& form, const float* x, i64 I, const float* scales, i64 group, float* y, i64 y_step) {
    const i64 groups = group ? (I + group - 1) / group : 1;
    wide sums[OUT][ROWS] = {};
    float tails[OUT][ROWS] = {};
    for (i64 g = 0; g < groups; ++g) {
        const i64 stop = !group || g + 1 == groups ? I : (g + 1) * group;
        i64 i = g * group;
        float scale[OUT];
        for (int o = 0; o < OUT; ++o) scale[o] = group ? scales[o * groups + g] : 1.0f;
        for (; i + 16 <= stop; i += 16) {
            wide w[OUT];
            form.template load<OUT>(i, w);
            if (i % 64 == 0) form.template fetch<OUT>(i);
            if (group)
                for (int o = 0; o < OUT; ++o) w[o] *= scale[o];
            for (int r = 0; r < ROWS; ++r) {
                const wide v = load(x + r * I + i);
                for (int o = 0; o < OUT; ++o) sums[o][r] += v * w[o];
            }
        }
        for (; i < stop; ++i)
            for (int o = 0; o < OUT; ++o) {
                const float w = scale[o] * form.at(o, i);
                for (int r = 0; r < ROWS; ++r) tails[o][r] += x[r * I + i] * w;
            }
    }
    for (int o = 0; o < OUT; ++o)
        for (int r = 0; r < ROWS; ++r) y[r * y_step + o] = (group ? 1.0f : scales[o]) * (sum_of(sums[o][r]) + tails[o][r]);
}

// Some rows at a time; the codes that they share are in the nearest cache from the second time on.
template <class Form, int OUT>
static void tile_rows(const Form& form, const float* x, i64 rows, i64 I, const float* scales, i64 group, float* y, i64 step) {
    i64 r = 0;
    for (; r + MOST_ROWS <= rows; r += MOST_ROWS)
        tile<Form, OUT, MOST_ROWS>(form, x + r * I, I, scales, group, y + r * step, step);
    for (; r + 2 <= rows; r += 2) tile<Form, OUT, 2>(form, x + r * I, I, scales, group, y + r * step, step);
    if (r < rows) tile<Form, OUT, 1>(form, x + r * I, I, scales, group, y + r * step, step);
}

// y[r] = x[r] W' for `rows` rows of x [rows, I]; outputs first .. first + width, or fewer at the end
template <class Form>
static void outputs(const int8_t* codes, const float* scales, i64 group, const float* x, i64 rows, i64 I, i64 O, i64 first,
                    i64 width, float* y) {
    const i64 groups = group ? (I + group - 1) / group : 1, stop = first + width < O ? first + width : O;
    i64 o = first;
    if (rows == 1)  // more outputs, as there are fewer sums
        for (; o + 2 * OUTPUTS <= stop; o += 2 * OUTPUTS)
            tile<Form, 2 * OUTPUTS, 1>(Form(codes, o, I), x, I, scales + o * groups, group, y + o, O);
    for (; o + OUTPUTS <= stop; o += OUTPUTS)
        tile_rows<Form, OUTPUTS>(Form(codes, o, I), x, rows, I, scales + o * groups, group, y + o, O);
    if (o + 2 <= stop) {
        tile_rows<Form, 2>(Form(codes, o, I), x, rows, I, scales + o * groups, group, y + o, O);
        o += 2;
    }
    if (o < stop) tile_rows<Form, 1>(Form(codes, o, I), x, rows, I, scales + o * groups, group, y + o, O);
}

template <class Form>
static void product(const int8_t* codes, const float* scales, i64 group, const float* x, const i64* experts,
                    const i64* starts, i64 parts, i64 I, i64 O, float* y, int threads) {
    // wide items, as what is fetched ahead of an item's end is lost; some more than threads
    const i64 fair = O / (8 * threads) / TILE * TILE, width = fair < TILE ? TILE : (fair > 8 * TILE ? 8 * TILE : fair);
    const i64 tiles = (O + width - 1) / width, groups = group ? (I + group - 1) / group : 1;
    const i64 code_step = Form::rows(O) * I, scale_step = O * groups;
    share_out(parts * tiles, threads, [&](i64 item) {
        const i64 p = item / tiles, first = item % tiles * width, e = experts ? experts[p] : 0;
        outputs<Form>(codes + e * code_step, scales + e * scale_step, group, x + starts[p] * I, starts[p + 1] - starts[p], I,
                      O, first, width, y + starts[p] * O);
    });
}

template <class Form>
static void numbers(const int8_t* codes, const float* scales, i64 group, i64 E, i64 I, i64 O, float* w, int threads) {
    const i64 groups = group ? (I + group - 1) / group : 1;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 row = 0; row < E * O; ++row) {
        const i64 e = row / O, o = row % O;
        const Form form(codes + e * Form::rows(O) * I, o, I);
        float* out = w + row * I;
        for (i64 g = 0; g < groups; ++g) {
            const i64 stop = !group || g + 1 == groups ? I : (g + 1) * group;
            const float scale = scales[row * groups + g];
            i64 i = g * group;
            for (; i + 16 <= stop; i += 16) store(out + i, scale * form.one(i));
            for (; i < stop; ++i) out[i] = scale * form.at(0, i);
        }
    }
}

// form: 0 int8, 1 int4, 2 nf4. experts: of each part, or null for one matrix; part p has rows starts[p] .. starts[p + 1).
EXPORT void packed_product(int form, const int8_t* codes, const float* scales, i64 group, const float* x, const i64* experts,
                           const i64* starts, i64 parts, i64 I, i64 O, float* y, int threads) {
    if (form == 0) product<Int8>(codes, scales, group, x, experts, starts, parts, I, O, y, threads);
    if (form == 1) product<Halves<false>>(codes, scales, group, x, experts, starts, parts, I, O, y, threads);
    if (form == 2) product<Halves<true>>(codes, scales, group, x, experts, starts, parts, I, O, y, threads);
}

// w [E, O, I]
EXPORT void packed_numbers(int form, const int8_t* codes, const float* scales, i64 group, i64 E, i64 I, i64 O, float* w,
                           int threads) {
    if (form == 0) numbers<Int8>(codes, scales, group, E, I, O, w, threads);
    if (form == 1) numbers<Halves<false>>(codes, scales, group, E, I, O, w, threads);
    if (form == 2) numbers<Halves<true>>(codes, scales, group, E, I, O, w, threads);
}
