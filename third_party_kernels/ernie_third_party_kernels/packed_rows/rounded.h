// Rows that are rounded for products in whole numbers: which, and where the processor has them.
#pragma once
#include "../packed_weights/codes.h"
#include <cstdlib>

// Where scales are shared by all inputs, values of a row that share a step; blocks are a multiple of four long.
constexpr i64 BLOCK = 256, LONGEST = 1024;
// Steps in the largest value of a block.
constexpr float LEVELS = 32639.0f;  // 127 * 256 + 127
// The same in three parts: below 127 * 65793 by more than rounding.
constexpr float FINE_LEVELS = 8355000.0f;

// How rows are multiplied. fine: in three parts where there are parts, else in float32. tiles: with the matrix tiles of the
// processor where it has them, which changes no bit.
struct Way {
    bool fine, tiles;
};

// 2: a value is two or three int8 parts (split.h, integers.h). 1: it is one int16 (words.h). 0: products are in float32 alone.
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#define INTEGERS 2
#elif defined(__AVX2__) && !defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#define INTEGERS 1
#else
#define INTEGERS 0
#endif
