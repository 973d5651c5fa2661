// Products of rows with a matrix that is stored by outputs: a vector of it is widened to float once and multiplied with
// several rows of x. float32 throughout: no rounding of x.
#pragma once
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
    for (int o = 0; o < OUT; ++o) {
        const float scale = group || !Form::SCALED ? 1.0f : scales[o];
        for (int r = 0; r < ROWS; ++r) y[r * y_step + o] = scale * (sum_of(sums[o][r]) + tails[o][r]);
    }
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

// y [rows, width], `step` apart = x [rows, I] W', outputs first .. first + width, or fewer at the end
template <class Form, class Code>
static void outputs(const Code* codes, const float* scales, i64 group, const float* x, i64 rows, i64 I, i64 O, i64 first,
                    i64 width, float* y, i64 step) {
    const i64 groups = group ? (I + group - 1) / group : 1, stop = first + width < O ? first + width : O;
    const auto scale = [&](i64 o) { return Form::SCALED ? scales + o * groups : nullptr; };
    i64 o = first;
    if (rows == 1)  // more outputs, as there are fewer sums
        for (; o + 2 * OUTPUTS <= stop; o += 2 * OUTPUTS)
            tile<Form, 2 * OUTPUTS, 1>(Form(codes, o, I), x, I, scale(o), group, y + o - first, step);
    for (; o + OUTPUTS <= stop; o += OUTPUTS)
        tile_rows<Form, OUTPUTS>(Form(codes, o, I), x, rows, I, scale(o), group, y + o - first, step);
    if (o + 2 <= stop) {
        tile_rows<Form, 2>(Form(codes, o, I), x, rows, I, scale(o), group, y + o - first, step);
        o += 2;
    }
    if (o < stop) tile_rows<Form, 1>(Form(codes, o, I), x, rows, I, scale(o), group, y + o - first, step);
}
