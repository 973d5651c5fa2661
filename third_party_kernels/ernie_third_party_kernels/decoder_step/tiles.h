// Products of rows on the processor's matrix tiles (AMX), with int8 codes, int4 codes with a scale per output, or bfloat16: 16
// outputs times 64 bytes of inputs of a matrix as they lie in memory, times 16 columns, each of which is one of the three parts
// of a row. Parts of integers.h, whose sums are exact, or three bfloat16 numbers, which are a float32 together and whose sums are
// those of their column alone: either way a row has the same bits whatever stands beside it.
#pragma once
#include "integers.h"

constexpr i64 TILE_OUTPUTS = 32;  // outputs that are worked on together

#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#include "../matrix_tiles.h"

// Whether a matrix is multiplied so.
static inline bool in_tiles(const Matrix& matrix) {
    if (matrix.form == BFLOAT_OUTPUTS_FIRST) return matrix.inputs % 32 == 0 && has_bfloat_tiles();
    const bool coded = matrix.form == INT8 || matrix.form == INT4;
    return coded && !matrix.group && matrix.inputs % CHUNK == 0 && matrix.inputs <= MOST_DEPTH && has_tiles();
}

// Up to 16 rows: their parts [chunks, tiles, 16, 16 columns, 4 bytes], of which column p rows + r has part p of row r, and scales.
struct TiledRows {
    i64 rows, tiles, chunks;
    int8_t* parts;
    float* scales;
    TiledRows(i64 bytes, i64 rows, float* memory)
        : rows(rows), tiles(column_tiles(rows)), chunks(bytes / CHUNK), parts(reinterpret_cast<int8_t*>(memory)),
          scales(memory + chunks * tiles * 256) {}
};

// Three bfloat16 numbers that are x together where it is finite, of 32 values; those of one part are `step` bytes from the next.
static inline void put_bfloats(const float* x, int8_t* to, i64 step) {
    for (int half = 0; half < 2; ++half) {
        __m512 left = _mm512_loadu_ps(x + 16 * half);
        for (int p = 0; p < 3; ++p) {
            const __m512i high = _mm512_and_si512(_mm512_castps_si512(left), _mm512_set1_epi32(-65536));
            const __m256i words = _mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + p * step + 32 * half), words);
            left = _mm512_sub_ps(left, _mm512_castsi512_ps(high));
        }
    }
}

template <bool BFLOATS>
static void tile_rows(const TiledRows& to, const float* x, i64 inputs) {
    alignas(64) int8_t columns[3 * TILE_ROWS][CHUNK];
    __m512 factors[TILE_ROWS];
    constexpr i64 each = BFLOATS ? 32 : CHUNK;  // inputs of a chunk
    const i64 apart = to.rows * CHUNK;
    for (i64 r = 0; r < to.rows && !BFLOATS; ++r) factors[r] = factor_of(x + r * inputs, inputs, to.scales + r);
    std::memset(columns, 0, sizeof(columns));
    int8_t* out = to.parts;
    for (i64 c = 0; c < to.chunks; ++c) {
        for (i64 r = 0; r < to.rows; ++r) {
            const float* from = x + r * inputs + c * each;
            if (BFLOATS)
                put_bfloats(from, columns[r], apart);
            else
                for (i64 i = 0; i < CHUNK; i += 16) put_parts(_mm512_loadu_ps(from + i), factors[r], columns[r] + i, apart);
        }
        for (i64 t = 0; t < to.tiles; ++t) {
            vec quarters[W];
            for (int i = 0; i < W; ++i) std::memcpy(quarters + i, columns[16 * t + i], 64);
            turn(quarters);
            for (int i = 0; i < W; ++i, out += 64) std::memcpy(out, quarters + i, 64);
        }
    }
}

template <bool BFLOATS, int SUMS, int ROWS, int COLUMNS>
static inline void add_of() {
    if constexpr (BFLOATS)
        add_bfloat_tiles<SUMS, ROWS, COLUMNS>();
    else
        add_signed_tiles<SUMS, ROWS, COLUMNS>();
}

constexpr i64 SUMS_STEP = 64 * 5 / 4;  // words from output to output of the sums

// sums [32, 16 T] of outputs whose bytes are `step` apart; what comes next, in pieces of 2048 bytes a chunk, is asked for
template <bool BFLOATS, int T>
static void tile_sums(const int8_t* matrix, i64 step, const TiledRows& x, const int8_t* ahead, int32_t* sums) {
    const int8_t* columns = x.parts;
    const int8_t* second = matrix + 16 * step;
    zero_tiles<0, 1>();
    if (T > 1) zero_tiles<2, 3>();
    if (T > 2) zero_tiles<4, 5>();
    for (i64 c = 0; c < x.chunks; ++c, matrix += CHUNK, second += CHUNK, columns += T * 1024) {
        if (ahead)
            for (int i = 0; i < 32; ++i, ahead += 64) __builtin_prefetch(ahead, 0, 2);
        if (T < 3) {
            load_tile<6>(columns, 64), load_tile<4>(matrix, step), add_of<BFLOATS, 0, 4, 6>();
            load_tile<5>(second, step), add_of<BFLOATS, 1, 5, 6>();
            if (T > 1) load_tile<7>(columns + 1024, 64), add_of<BFLOATS, 2, 4, 7>(), add_of<BFLOATS, 3, 5, 7>();
        } else {
            load_tile<6>(matrix, step), load_tile<7>(columns, 64), add_of<BFLOATS, 0, 6, 7>();
            load_tile<7>(columns + 1024, 64), add_of<BFLOATS, 2, 6, 7>();
            load_tile<7>(columns + 2048, 64), add_of<BFLOATS, 4, 6, 7>();
            load_tile<6>(second, step), add_of<BFLOATS, 5, 6, 7>();
            load_tile<7>(columns + 1024, 64), add_of<BFLOATS, 3, 6, 7>();
            load_tile<7>(columns, 64), add_of<BFLOATS, 1, 6, 7>();
        }
    }
    constexpr i64 apart = 4 * SUMS_STEP;
    int32_t* others = sums + 16 * SUMS_STEP;
    store_tile<0>(sums, apart), store_tile<1>(others, apart);
    if (T > 1) store_tile<2>(sums + 16, apart), store_tile<3>(others + 16, apart);
    if (T > 2) store_tile<4>(sums + 32, apart), store_tile<5>(others + 32, apart);
}

// y [rows, count] of the sums of up to 16 outputs
template <bool BFLOATS>
static inline void put_outputs(const TiledRows& x, const int32_t* sums, const float* scales, i64 count, float* y, i64 step) {
    const __mmask16 rows = static_cast<__mmask16>((1u << x.rows) - 1), outputs = static_cast<__mmask16>((1u << count) - 1);
    vec all[W];
    for (i64 o = 0; o < W; ++o, sums += SUMS_STEP) {
        __m512i s[3];
        for (int p = 0; p < 3; ++p) s[p] = _mm512_maskz_loadu_epi32(rows, sums + p * x.rows);
        __m512 sum;
        if (BFLOATS) {
            sum = _mm512_add_ps(_mm512_castsi512_ps(s[0]), _mm512_add_ps(_mm512_castsi512_ps(s[1]), _mm512_castsi512_ps(s[2])));
        } else {
            sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[1]), _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(s[2]));
            sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[0]), _mm512_set1_ps(65536.0f), sum);
            const __m512 scale = _mm512_set1_ps(o < count ? scales[o] : 0.0f);
            sum = _mm512_mul_ps(_mm512_mul_ps(scale, _mm512_maskz_loadu_ps(rows, x.scales)), sum);
        }
        all[o] = (vec)sum;
    }
    turn(all);
    for (i64 r = 0; r < x.rows; ++r) _mm512_mask_storeu_ps(y + r * step, outputs, (__m512)all[r]);
}

// int8 codes [32, bytes] of up to 32 outputs whose int4 codes are at `codes`
static void unpack_outputs(const int8_t* codes, i64 inputs, i64 count, int8_t* to, i64 step) {
    const __m512i eight = _mm512_set1_epi8(8), lowest = _mm512_set1_epi8(15);
    for (i64 r = 0; 2 * r < count; ++r)
        for (i64 i = 0; i < inputs; i += 64) {
            const int8_t* from = codes + r * inputs + i;
            __builtin_prefetch(from + TILE_OUTPUTS / 2 * inputs, 0, 2);
            const __m512i flipped = _mm512_xor_si512(_mm512_loadu_si512(from), _mm512_set1_epi8(-120));
            const __m512i low = _mm512_and_si512(flipped, lowest), high = _mm512_and_si512(_mm512_srli_epi16(flipped, 4), lowest);
            _mm512_store_si512(to + 2 * r * step + i, _mm512_sub_epi8(low, eight));
            _mm512_store_si512(to + (2 * r + 1) * step + i, _mm512_sub_epi8(high, eight));
        }
}

// Where some outputs of a matrix, `count` of 32, can be read in tiles: in the matrix itself, or in a thread's own memory.
struct TileOutputs {
    const int8_t *data, *ahead;
    i64 step;

    // `begin`: the first ones of a tile. `more`: as many come behind them.
    TileOutputs(const Matrix& matrix, i64 expert, i64 first, i64 count, bool begin, bool more, int8_t* memory) {
        const i64 bytes = tile_bytes(matrix), apart = unpacked_step(bytes);
        const bool halves = matrix.form == INT4;
        const i64 rows = halves ? (matrix.outputs + 1) / 2 : matrix.outputs;
        data = static_cast<const int8_t*>(matrix.data) + (expert * rows + (halves ? first / 2 : first)) * bytes, step = bytes;
        ahead = more && !halves ? data + TILE_OUTPUTS * bytes : nullptr;
        if (begin && !halves)  // nobody has asked for these; one after the other they come faster than side by side
            for (i64 i = 0; i < count * bytes; i += 64) __builtin_prefetch(data + i, 0, 2);
        if (!halves && count == TILE_OUTPUTS) return;
        if (halves)
            unpack_outputs(data, bytes, count, memory, apart);
        else
            for (i64 r = 0; r < count; ++r) std::memcpy(memory + r * apart, data + r * bytes, static_cast<size_t>(bytes));
        for (i64 r = halves ? (count + 1) / 2 * 2 : count; r < TILE_OUTPUTS; ++r) std::memset(memory + r * apart, 0, static_cast<size_t>(bytes));
        data = memory, step = apart;
    }
};

// y [rows, n] of rows whose parts, 16 rows after 16 rows, are at `parts`
template <bool BFLOATS>
static void products_in_tiles(const Matrix& matrix, i64 expert, const float* parts, i64 rows, i64 first, i64 n, int8_t* unpacked,
                              float* y, i64 step) {
    const i64 bytes = tile_bytes(matrix), group = tiled_floats(bytes, TILE_ROWS);
    const float* scales = BFLOATS ? nullptr : matrix.scales + expert * matrix.outputs + first;
    alignas(64) int32_t sums[TILE_OUTPUTS * SUMS_STEP];
    for (i64 o = 0; o < n; o += TILE_OUTPUTS) {
        const i64 count = n - o < TILE_OUTPUTS ? n - o : TILE_OUTPUTS;
        const TileOutputs of(matrix, expert, first + o, count, !o, o + 2 * TILE_OUTPUTS <= n, unpacked);
        for (i64 m = 0; m < rows; m += TILE_ROWS) {
            const i64 some = rows - m < TILE_ROWS ? rows - m : TILE_ROWS;
            const TiledRows tiled(bytes, some, const_cast<float*>(parts) + m / TILE_ROWS * group);
            const int8_t* ahead = m ? nullptr : of.ahead;
            if (tiled.tiles == 1)
                tile_sums<BFLOATS, 1>(of.data, of.step, tiled, ahead, sums);
            else if (tiled.tiles == 2)
                tile_sums<BFLOATS, 2>(of.data, of.step, tiled, ahead, sums);
            else
                tile_sums<BFLOATS, 3>(of.data, of.step, tiled, ahead, sums);
            for (i64 half = 0; half < count; half += 16)
                put_outputs<BFLOATS>(tiled, sums + half * SUMS_STEP, scales ? scales + o + half : nullptr,
                                     count - half < 16 ? count - half : 16, y + m * step + o + half, step);
        }
    }
}

static inline Kind kind_of(const Matrix& matrix) { return matrix.form == BFLOAT_OUTPUTS_FIRST ? BFLOAT_TILES : BYTE_TILES; }

// The parts of up to 16 rows, as `matrix` wants them.
static void tile_some(const Matrix& matrix, const float* x, i64 rows, float* memory) {
    const TiledRows to(tile_bytes(matrix), rows, memory);
    if (kind_of(matrix) == BFLOAT_TILES)
        tile_rows<true>(to, x, matrix.inputs);
    else
        tile_rows<false>(to, x, matrix.inputs);
}

// sums [rows, n], `step` apart: some outputs of all rows. Rows that were split for another tile of a phase are not split again.
static void tiles_tile(const Matrix& matrix, i64 expert, const float* x, i64 rows, i64 first, i64 n, const Splits& splits,
                       float* y, i64 step) {
    const Kind kind = kind_of(matrix);
    const auto run = [&](const float* parts, i64 count, float* to) {
        if (kind == BFLOAT_TILES)
            products_in_tiles<true>(matrix, expert, parts, count, first, n, splits.unpacked, to, step);
        else
            products_in_tiles<false>(matrix, expert, parts, count, first, n, splits.unpacked, to, step);
    };
    Shapes(16, 0).use();
    if (rows > TILE_ROWS && splits.all->are(x, kind)) {
        run(splits.shared, rows, y);
    } else {
        for (i64 m = 0; m < rows; m += TILE_ROWS) {
            const i64 some = rows - m < TILE_ROWS ? rows - m : TILE_ROWS;
            const float* from = x + m * matrix.inputs;
            if (!splits.own->are(from, kind) || rows > TILE_ROWS) tile_some(matrix, from, some, splits.memory);
            *splits.own = {from, kind};
            run(splits.memory, some, y + m * step);
        }
    }
    release_tiles();
}
#else
static inline bool in_tiles(const Matrix&) { return false; }
static void tiles_tile(const Matrix&, i64, const float*, i64, i64, i64, const Splits&, float*, i64) {}
static inline Kind kind_of(const Matrix&) { return PARTS; }
static void tile_some(const Matrix&, const float*, i64, float*) {}
#endif
