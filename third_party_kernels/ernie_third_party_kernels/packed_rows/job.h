// What is multiplied: y [N, O] = x [N, I] W' with W [O, I] by outputs, or the way back, y [N, I] = x [N, O] W. Of stacked
// experts part p has the rows starts[p] .. starts[p + 1) and the matrix experts[p]; `experts` is null for one matrix.
#pragma once
#include "../grouped_gemm/products.h"
#include "../packed_weights/codes.h"

template <class Code>
struct Coded {
    const Code* codes;
    const float* scales;
    i64 group;
    const float* x;
    const i64 *experts, *starts;
    i64 parts, I, O;
    float* y;
    int threads;

    i64 rows() const { return starts[parts]; }
    i64 groups() const { return group ? (I + group - 1) / group : 1; }
    i64 expert(i64 part) const { return experts ? experts[part] : 0; }
    const float* scales_of(i64 part) const { return scales ? scales + expert(part) * O * groups() : nullptr; }
    template <class Form>
    const Code* codes_of(i64 part) const {
        return codes + expert(part) * Form::rows(O) * I;
    }
};

typedef Coded<int8_t> Job;

// W'[o, first .. stop) of a form that begins at output o, with the scales of that output.
template <class Form>
static inline void numbers_of(const Form& form, const float* scales, i64 group, i64 first, i64 stop, float* to) {
    for (i64 i = first; i < stop;) {
        const i64 g = group ? i / group : 0, end = group && (g + 1) * group < stop ? (g + 1) * group : stop;
        const float scale = Form::SCALED ? scales[g] : 1.0f;
        for (; i + 16 <= end; i += 16, to += 16) store(to, scale * form.one(i));
        for (; i < end; ++i) *to++ = scale * form.at(0, i);
    }
}
