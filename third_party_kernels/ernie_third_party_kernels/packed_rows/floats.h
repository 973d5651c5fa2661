// The product in float32: a panel of the matrix is widened into the nearest caches, and all rows pass over it.
#pragma once
#include "job.h"

// A panel is [DEEP, PANEL]; rows that are copied next to each other, as rows of a power of two share few places of a cache.
constexpr i64 DEEP = 256, PANEL = 64, PANELS = 6, BESIDE = 96;

// Depth first .. first + depth of some columns. Forward the columns are outputs, back they are inputs.
template <class Form, bool BACK, class Code>
static void fill_panel(const Coded<Code>& j, i64 part, i64 first, i64 depth, i64 column, i64 columns, float* turned_from, float* panel) {
    const Code* codes = j.template codes_of<Form>(part);
    const i64 groups = Form::SCALED ? j.groups() : 0;
    const float* scales = Form::SCALED ? j.scales_of(part) : nullptr;
    if (BACK) {
        for (i64 k = 0; k < depth; ++k) {
            const i64 o = first + k;
            numbers_of(Form(codes, o, j.I), scales + o * groups, j.group, column, column + columns, panel + k * PANEL);
            std::memset(panel + k * PANEL + columns, 0, sizeof(float) * static_cast<size_t>(PANEL - columns));
        }
        return;
    }
    for (i64 c = 0; c < columns; ++c) {
        const i64 o = column + c;
        numbers_of(Form(codes, o, j.I), scales + o * groups, j.group, first, first + depth, turned_from + c * DEEP);
    }
    turned(turned_from, DEEP, columns, depth, panel, PANEL, 1.0f);
}

// Rows next to each other [rows, DEEP] times a panel, written or added to y.
static void add_product(const float* beside, const float* panel, i64 rows, i64 depth, float* y, i64 y_step, i64 columns, bool add) {
    float edge[TALL * PANEL];
    const i64 wide = (columns + W - 1) / W;
    for (i64 m = 0; m < rows; m += TALL, y += TALL * y_step) {
        const i64 some = rows - m < TALL ? rows - m : TALL;
        for (i64 r = TALL; add && r < 2 * TALL && m + r < rows; ++r)  // results that come next, towards the cache
            for (i64 c = 0; c < columns; c += 16) __builtin_prefetch(y + r * y_step + c, 1);
        if (wide * W == columns) {
            multiply(beside + m * DEEP, DEEP, 1, panel, PANEL, y, y_step, some, wide, depth, add);
            continue;
        }
        multiply(beside + m * DEEP, DEEP, 1, panel, PANEL, edge, PANEL, some, wide, depth, false);
        for (i64 r = 0; r < some; ++r)
            for (i64 c = 0; c < columns; ++c) y[r * y_step + c] = edge[r * PANEL + c] + (add ? y[r * y_step + c] : 0.0f);
    }
}

// false: no memory
template <class Form, bool BACK, class Code>
static bool in_floats(const Coded<Code>& j) {
    const i64 whole = BACK ? j.O : j.I, columns = BACK ? j.I : j.O;
    const i64 all = (columns + PANEL - 1) / PANEL, fair = all * j.parts / (4 * j.threads);
    const i64 width = PANEL * (fair < 1 ? 1 : (fair > PANELS ? PANELS : fair)), tiles = (columns + width - 1) / width;
    const i64 floats = DEEP * PANEL * (PANELS + 1) + BESIDE * DEEP;
    return with_memory(j.parts * tiles, floats, j.threads, [&](i64 item, float* memory) {
        const i64 p = item / tiles, from = item % tiles * width, to = from + width < columns ? from + width : columns;
        float *panels = memory, *beside = panels + DEEP * PANEL * PANELS, *turned_from = beside + BESIDE * DEEP;
        if (j.starts[p] == j.starts[p + 1]) return;
        for (i64 k = 0; k < whole; k += DEEP) {
            const i64 depth = whole - k < DEEP ? whole - k : DEEP;
            for (i64 c = from, n = 0; c < to; c += PANEL, ++n)
                fill_panel<Form, BACK>(j, p, k, depth, c, to - c < PANEL ? to - c : PANEL, turned_from, panels + n * DEEP * PANEL);
            for (i64 r = j.starts[p]; r < j.starts[p + 1]; r += BESIDE) {
                const i64 rows = j.starts[p + 1] - r < BESIDE ? j.starts[p + 1] - r : BESIDE;
                for (i64 m = 0; m < rows; ++m)
                    std::memcpy(beside + m * DEEP, j.x + (r + m) * whole + k, sizeof(float) * static_cast<size_t>(depth));
                for (i64 c = from, n = 0; c < to; c += PANEL, ++n)
                    add_product(beside, panels + n * DEEP * PANEL, rows, depth, j.y + r * columns + c, columns,
                                to - c < PANEL ? to - c : PANEL, k > 0);
            }
        }
    });
}
