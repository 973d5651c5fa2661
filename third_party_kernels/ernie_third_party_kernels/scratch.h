// Memory that a thread keeps from one call to the next. What is taken and given back for every call leaves holes in the heap, into
// which results between them are put, and the next call does not find its place again: a sixth of the memory of a DPO run.
#pragma once
#include <cstddef>
#include <cstdlib>

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

// Of each thread of a loop that is shared out; what it runs does not share out loops of its own.
static inline Scratch& scratch_of_thread() {
    thread_local Scratch own;
    return own;
}
