// Products of many rows with packed weights, and their way back to the rows, a panel of the matrix at a time: int8, int4 and
// NF4. In whole numbers where the processor and the codes allow it, else in float32. The bits depend neither on the threads
// nor on the rows beside a row.
#include "floats.h"
#include "rounded.h"
#if INTEGERS == 2
#include "integers.h"
#elif INTEGERS == 1
#include "words.h"
#endif

#if INTEGERS
// Columns of an item of work, and rows that pass over them at a time.
struct Cut {
    i64 width, tiles, tall;
    Cut(const Job& j, const Split& rows, i64 columns, bool by_group) {
        const i64 depth = rows.depth;
        width = STRIPS / column_bytes(depth) / COLUMNS * COLUMNS;
        width = width < COLUMNS ? COLUMNS : (width > 4 * COLUMNS ? 4 * COLUMNS : width);
        while (width > COLUMNS && (columns + width - 1) / width * j.parts < 4 * j.threads) width -= COLUMNS;
        if (by_group) width = j.group;
        tiles = (columns + width - 1) / width;
        tall = PARTS / rows.step() / EVEN * EVEN;
        tall = tall < EVEN ? EVEN : (tall > PASSING ? PASSING : tall);
    }
};

// What an output's sums are multiplied with: [blocks, COLUMNS] where inputs have groups, else [1, COLUMNS].
static void factors_of(const Job& j, i64 part, i64 first, bool back, float* to) {
    const i64 groups = back ? 1 : j.groups();
    const float* scales = j.scales_of(part);
    for (i64 g = 0; g < groups; ++g)
        for (i64 c = 0; c < COLUMNS; ++c) to[g * COLUMNS + c] = back ? 1.0f : (first + c < j.O ? scales[(first + c) * groups + g] : 0.0f);
}

// All rows, as they are needed by every item; on the way back times the scale of each output.
static void split_all(const Job& j, const Split& to, bool back) {
    const i64 piece = 16;
    share_out((j.rows() + piece - 1) / piece, j.threads, [&](i64 item) {
        i64 p = 0;
        for (i64 r = item * piece; r < (item + 1) * piece && r < j.rows(); ++r) {
            while (r >= j.starts[p + 1]) ++p;
            split_row(to, r, j.x + r * to.depth, back ? j.scales_of(p) : nullptr);
        }
    });
}

// false: no memory
template <class Form>
static bool in_integers(const Job& j, bool back, Way way) {
    typedef typename Form::Widened Stored;
    const i64 depth = back ? j.O : j.I, columns = back ? j.I : j.O, groups = j.groups();
    const bool by_group = back && j.group;  // the scales belong to depth and columns: rows are split for each group
    const i64 block = j.group && !back ? j.group : BLOCK, sizes = back ? 1 : groups;
    const Split form = Split::of(depth, block, Form::OFFSET, way.fine);
    const Cut cut(j, form, columns, by_group);
    const i64 strips = (cut.width + COLUMNS - 1) / COLUMNS, strip = column_bytes(depth) / 4 * COLUMNS, beside = sizes * COLUMNS;
    const i64 own = by_group ? up_to(form.floats(cut.tall), 16) + up_to(depth, 16) : 0;
    thread_local Scratch scratch;
    float* all = scratch.floats(by_group ? 16 : up_to(form.floats(j.rows()), 16));
    if (!all) return false;
    const Split rows = form.in(all, by_group ? 0 : j.rows());
    if (!by_group) split_all(j, rows, back);
    const bool enough = with_memory(j.parts * cut.tiles, strips * (strip + beside) + own, j.threads, [&](i64 item, float* memory) {
        const i64 p = item / cut.tiles, tile = item % cut.tiles, first = tile * cut.width;
        const i64 count = columns - first < cut.width ? columns - first : cut.width, used = (count + COLUMNS - 1) / COLUMNS;
        if (j.starts[p] == j.starts[p + 1]) return;
        float *factors = memory + strips * strip, *scales = factors + strips * beside, *parts = scales + up_to(depth, 16);
        const int8_t* codes = j.codes_of<Stored>(p);
        for (i64 s = 0; s < used; ++s) {
            uint8_t* to = reinterpret_cast<uint8_t*>(memory + s * strip);
            if (back)
                strip_of_inputs<Form>(codes, j.O, j.I, first + s * COLUMNS, count - s * COLUMNS, to);
            else
                strip_of_outputs<Form>(codes, j.O, j.I, first + s * COLUMNS, to);
            factors_of(j, p, first + s * COLUMNS, back, factors + s * beside);
        }
        if (by_group)
            for (i64 o = 0; o < j.O; ++o) scales[o] = j.scales_of(p)[o * groups + tile];
        for (i64 r = j.starts[p]; r < j.starts[p + 1]; r += cut.tall) {
            const i64 some = j.starts[p + 1] - r < cut.tall ? j.starts[p + 1] - r : cut.tall;
            const Split now = by_group ? form.in(parts, cut.tall) : rows;
            for (i64 m = 0; by_group && m < some; ++m) split_row(now, m, j.x + (r + m) * depth, scales);
            const i64 at = by_group ? 0 : r;
            for (i64 s = 0; s < used; ++s)
                rows_of(now, at, at + some, reinterpret_cast<uint8_t*>(memory + s * strip), factors + s * beside,
                        sizes > 1 ? COLUMNS : 0, j.y + r * columns + first + s * COLUMNS, columns, count - s * COLUMNS, way.tiles);
        }
    });
    scratch.give_back();
    return enough;
}
#endif

// Whether codes in groups of so many inputs are multiplied in whole numbers.
static bool takes_integers(int form, i64 group, bool back, bool fine) {
#if INTEGERS
    return form < 2 && can_multiply(form, group, back, fine);
#else
    (void)form, (void)group, (void)back, (void)fine;
    return false;
#endif
}

template <bool BACK>
static bool product(int form, const Job& job, Way way) {
#if INTEGERS
    if (takes_integers(form, job.group, BACK, way.fine))
        return form == 0 ? in_integers<Bytes>(job, BACK, way) : in_integers<Nibbles>(job, BACK, way);
#else
    (void)way;
#endif
    if (form == 0) return in_floats<Int8, BACK>(job);
    if (form == 1) return in_floats<Halves<false>, BACK>(job);
    return in_floats<Halves<true>, BACK>(job);
}

#if INTEGERS == 2
static bool can_tiles() { return has_tiles(); }
#else
static bool can_tiles() { return false; }
#endif

// form: 0 int8, 1 int4, 2 nf4. back: x is [N, O] and y [N, I]. fine, tiles: see Way. 1: no memory.
EXPORT int packed_rows(int form, int back, int fine, int tiles, const int8_t* codes, const float* scales, i64 group, const float* x,
                       const i64* experts, const i64* starts, i64 parts, i64 I, i64 O, float* y, int threads) {
    const Job job = {codes, scales, group, x, experts, starts, parts, I, O, y, threads};
    const Way way = {fine != 0, tiles && can_tiles()};
    return (back ? product<true>(form, job, way) : product<false>(form, job, way)) ? 0 : 1;
}

// Whether packed_rows splits the rows of these products into whole numbers: into two parts, or into three.
EXPORT int packed_rows_splits(int form, int back, i64 group, int fine) { return takes_integers(form, group, back, fine) ? 1 : 0; }

// Whether this processor multiplies them with tiles.
EXPORT int packed_rows_tiles() { return can_tiles() ? 1 : 0; }
