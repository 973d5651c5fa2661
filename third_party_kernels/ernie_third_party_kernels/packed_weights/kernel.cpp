// Products with packed weights, W [O, I] by outputs: int8 codes, or two outputs 2j and 2j + 1 to a byte in four bits. The
// bits do not depend on the threads.
#include "product.h"

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
                      O, first, width, y + starts[p] * O + first, O);
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
