// What the kernels share: the export mark, wide vectors that the compiler maps to whatever the processor has, and exp.
// Each .cpp file is compiled once per instruction set into its own library, so nothing here dispatches.
#pragma once
#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

typedef int64_t i64;

// Which sources this was compiled from; see sources.py.
#ifdef ERNIE_SOURCES
__attribute__((used)) static const char ernie_sources[] = ERNIE_SOURCES;
#endif

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
// One register of floats, and the same in memory at any address.
typedef float vec __attribute__((vector_size(W * 4)));
typedef int32_t ivec __attribute__((vector_size(W * 4)));
typedef float vec_at __attribute__((vector_size(W * 4), aligned(4), may_alias));

static inline vec get(const float* p) { return *reinterpret_cast<const vec_at*>(p); }
static inline void put(float* p, vec v) { *reinterpret_cast<vec_at*>(p) = v; }
static inline vec all(float x) { return x - vec{}; }

// 16 floats: one register of AVX-512, two of AVX2, four of SSE or NEON.
#if defined(__AVX512F__)
typedef float wide __attribute__((vector_size(64), aligned(4), may_alias));

static inline wide load(const float* p) { return *reinterpret_cast<const wide*>(p); }
static inline void store(float* p, wide v) { *reinterpret_cast<wide*>(p) = v; }
#else
// Not one vector: GCC takes vectors wider than a register through memory and the registers of integers, ten times as slow.
struct wide {
    static constexpr int PARTS = 16 / W;
    vec part[PARTS];
};

template <class Part>
static inline wide by_parts(const Part& part) {
    wide v;
#pragma GCC unroll 4
    for (int i = 0; i < wide::PARTS; ++i) v.part[i] = part(i);
    return v;
}
static inline wide load(const float* p) {
    return by_parts([p](int i) { return get(p + i * W); });
}
static inline void store(float* p, const wide& v) {
#pragma GCC unroll 4
    for (int i = 0; i < wide::PARTS; ++i) put(p + i * W, v.part[i]);
}
static inline wide operator+(const wide& a, const wide& b) {
    return by_parts([&](int i) { return a.part[i] + b.part[i]; });
}
static inline wide operator-(const wide& a, const wide& b) {
    return by_parts([&](int i) { return a.part[i] - b.part[i]; });
}
static inline wide operator*(const wide& a, const wide& b) {
    return by_parts([&](int i) { return a.part[i] * b.part[i]; });
}
static inline wide operator*(float a, const wide& b) {
    return by_parts([&](int i) { return a * b.part[i]; });
}
static inline wide& operator+=(wide& a, const wide& b) { return a = a + b; }
static inline wide& operator*=(wide& a, float b) { return a = b * a; }
#endif

// work(0) .. work(items - 1), handed out one by one: a thread that is held up holds up no other. Not schedule(dynamic), whose
// entry points newer compilers expect in libraries newer than the OpenMP that Paddle brings.
template <class Work>
static inline void share_out(i64 items, int threads, const Work& work) {
    i64 next = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (;;) {
        const i64 item = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
        if (item >= items) break;
        work(item);
    }
}

// Sum of all 16, by halves.
static inline float sum_of(const wide& v) {
    typedef float eight __attribute__((vector_size(32)));
    typedef float four __attribute__((vector_size(16)));
    eight e[2];
    std::memcpy(e, &v, sizeof(v));
    e[0] += e[1];
    four f[2];
    std::memcpy(f, &e[0], sizeof(f));
    f[0] += f[1];
    return (f[0][0] + f[0][2]) + (f[0][1] + f[0][3]);
}

// Dot product in a fixed order: four chains of 16 columns, then the tail.
static inline float dot(const float* a, const float* b, i64 n) {
    wide s0 = {}, s1 = {}, s2 = {}, s3 = {};
    i64 i = 0;
    for (; i + 64 <= n; i += 64) {
        s0 += load(a + i) * load(b + i);
        s1 += load(a + i + 16) * load(b + i + 16);
        s2 += load(a + i + 32) * load(b + i + 32);
        s3 += load(a + i + 48) * load(b + i + 48);
    }
    for (; i + 16 <= n; i += 16) s0 += load(a + i) * load(b + i);
    float s = sum_of((s0 + s1) + (s2 + s3));
    for (; i < n; ++i) s += a[i] * b[i];
    return s;
}

// exp to 2 units in the last place: 2^n times a polynomial of degree 6 on [-ln 2 / 2, ln 2 / 2]. Arguments are clamped to
// where the result is a normal number; NaN stays NaN. Written so that loops over it vectorise.
static inline float exp_(float x) {
    x = x < -87.3f ? -87.3f : x;
    x = x > 88.3f ? 88.3f : x;
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    float n = x * 1.44269504088896341f + magic;
    int32_t bits;
    std::memcpy(&bits, &n, 4);
    n -= magic;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t power = static_cast<int32_t>(static_cast<uint32_t>(bits - 0x4B400000 + 127) << 23);
    float scale;
    std::memcpy(&scale, &power, 4);
    return p * scale;
}
