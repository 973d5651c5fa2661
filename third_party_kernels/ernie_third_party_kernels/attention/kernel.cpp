// Attention by blocks of 64 query positions of one head against a few keys: scores exist for one block at a time.
//
// Every block is held with a query per column, s[key][query], so that softmax needs no sums across a register, keys and
// values are read where they are, and only the block of queries is turned. Powers of two instead of e: log2 e is part of the
// factor of the queries. `parts` of the functions here: 1 or 2 bfloat16 numbers of each float32 number in products, on matrix tiles;
// otherwise products are float32.
#include "backward.h"
#include "forward.h"
#if defined(__AVX512BW__) && defined(__linux__)
#include "tile_products.h"
#endif

namespace {

// What a forward pass is given; the mask is freed. 1: no memory.
struct Given {
    Sizes n;
    View q, k, v;
    float *out, *stats;
    float scale;
    int threads;

    template <class Products>
    bool run(Mask& mask) const {
        return forward(Forward<Products>{n, q, k, v, out, stats, scale, mask}, threads);
    }
};

// What a backward pass is given; the same.
struct GivenBack {
    Sizes n;
    View q, k, v, out, dy;
    const float* stats;
    float *dq, *dk, *dv;
    float scale;
    i64 num_sums, q_step, k_step;
    int threads;

    template <class Products>
    bool run(Mask& mask) const {
        Backward<Products> pass = {n, q, k, v, out, dy, stats, dq, dk, dv, scale, mask, num_sums, q_step, k_step, false, nullptr, nullptr};
        return backward(pass, threads);
    }
};

template <class Some>
int run(const Some& given, int parts, bool enough, Mask& mask) {
#if defined(__AVX512BW__) && defined(__linux__)
    if (parts == 1)
        enough = enough && given.template run<TileProducts<1>>(mask);
    else if (parts == 2)
        enough = enough && given.template run<TileProducts<2>>(mask);
    else
#endif
        enough = enough && given.template run<FloatProducts>(mask);
    (void)parts;
    std::free(mask.first);
    return enough ? 0 : 1;
}

}  // namespace

// sizes: B, S, K, hq, hk, d; steps: three of q, of k, of v. stats [B, hq, S] is what attention_backward wants. 1: no memory.
EXPORT int attention_forward(const float* q, const float* k, const float* v, const int32_t* ends, const uint8_t* keep,
                             float* out, float* stats, const i64* sizes, const i64* steps, float scale, int parts, int threads) {
    const Sizes n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
    const Given given = {n, view(q, steps), view(k, steps + 3), view(v, steps + 6), out, stats, scale, threads};
    Mask mask = {};
    return run(given, parts, make_mask(n, ends, keep, mask), mask);
}

// steps: three of q, k, v, out and dy. dq, dk and dv have no gaps. num_sums: of dk and dv, made side by side.
EXPORT int attention_backward(const float* q, const float* k, const float* v, const float* out, const float* dy,
                              const float* stats, const int32_t* ends, const uint8_t* keep, float* dq, float* dk, float* dv,
                              const i64* sizes, const i64* steps, float scale, i64 num_sums, int parts, int threads) {
    const Sizes n = {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
    const GivenBack given = {n, view(q, steps), view(k, steps + 3), view(v, steps + 6), view(out, steps + 9), view(dy, steps + 12),
                             stats, dq, dk, dv, scale, num_sums, n.hq * n.d, n.hk * n.d, threads};
    Mask mask = {};
    return run(given, parts, make_mask(n, ends, keep, mask), mask);
}

// Frames of patches: qkv [N, 3, h, d]; out [N, h, d], stats [h, N]. The lengths of the frames add up to N.
EXPORT int patch_attention_forward(const float* qkv, const i64* lengths, i64 frames, float* out, float* stats, i64 N, i64 h,
                                   i64 d, float scale, int parts, int threads) {
    const Sizes n = {1, N, N, h, h, d};
    const i64 steps[3] = {0, 3 * h * d, d};
    const Given given = {n, view(qkv, steps), view(qkv + h * d, steps), view(qkv + 2 * h * d, steps), out, stats, scale, threads};
    Mask mask = {};
    return run(given, parts, make_frames(n, lengths, frames, mask), mask);
}

// dqkv as qkv; out and dy [N, h, d].
EXPORT int patch_attention_backward(const float* qkv, const i64* lengths, i64 frames, const float* out, const float* dy,
                                    const float* stats, float* dqkv, i64 N, i64 h, i64 d, float scale, i64 num_sums, int parts,
                                    int threads) {
    const Sizes n = {1, N, N, h, h, d};
    const i64 steps[3] = {0, 3 * h * d, d}, inner[3] = {0, h * d, d};
    const GivenBack given = {n, view(qkv, steps), view(qkv + h * d, steps), view(qkv + 2 * h * d, steps), view(out, inner),
                             view(dy, inner), stats, dqkv, dqkv + h * d, dqkv + 2 * h * d, scale, num_sums, 3 * h * d, 3 * h * d,
                             threads};
    Mask mask = {};
    return run(given, parts, make_frames(n, lengths, frames, mask), mask);
}
