// Memory that a thread keeps from one call to the next. What is taken and given back for every call leaves holes in the heap, into
// which results between them are put, and the next call does not find its place again: a sixth of the memory of a DPO run at 0.3B.
#pragma once
#include <cstddef>
#include <cstdlib>

#include "common.h"

class Scratch {
  public:
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { std::free(memory_); }

    // At least so many bytes, at a multiple of 64, with anything in them; nullptr: no memory. Until the next call of `take`.
    void* take(size_t bytes) {
        if (bytes > size_) {
            std::free(memory_);
            const size_t whole = (bytes + 63) / 64 * 64;
            memory_ = std::aligned_alloc(64, whole);
            size_ = memory_ ? whole : 0;
        }
        return memory_;
    }
    float* floats(i64 count) { return static_cast<float*>(take(sizeof(float) * static_cast<size_t>(count))); }

    // What is large is not kept.
    void give_back() {
        if (size_ <= MOST) return;
        std::free(memory_);
        memory_ = nullptr, size_ = 0;
    }

  private:
    static constexpr size_t MOST = 16 << 20;
    void* memory_ = nullptr;
    size_t size_ = 0;
};

// One for all loops of a thread.
static inline Scratch& scratch_of_thread() {
    thread_local Scratch own;
    return own;
}

// Runs work(item, memory) for every item, handed out one by one as `share_out` does, with memory of `floats` for each thread; false
// if there is none. What it runs does not call it again.
template <class Work>
static bool with_memory(i64 items, i64 floats, int threads, const Work& work) {
    bool enough = true;
    i64 next = 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float* memory = scratch_of_thread().floats(floats);
        if (!memory) {
#pragma omp atomic write
            enough = false;
        }
        while (memory) {
            const i64 item = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (item >= items) break;
            work(item, memory);
        }
        scratch_of_thread().give_back();
    }
    return enough;
}
