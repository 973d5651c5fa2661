// Threads that go through one pass together: each phase hands its items out one by one, and ends when all are done. Waiting
// is turning round for a while, as phases are microseconds long, then giving the processor away.
#pragma once
#include <sched.h>

#include "integers.h"

// Counters of items that are taken: each on a line of its own, so that threads do not wait for each other's.
struct alignas(64) Counter {
    i64 taken = 0;
};

struct Team {
    static constexpr int QUEUES = 16;
    int size = 1;
    Counter next[3][QUEUES];  // of the phases before, now and after
    i64 arrived = 0, round = 0;
    int queues() const { return size < QUEUES ? size : QUEUES; }
};

struct Member {
    static constexpr i64 AHEAD = 256 << 10;  // bytes that are prefetched at most
    Team& team;
    float* own;
    int index = 0;
    i64 phase = 0;
    Kept split = {}, shared = {};  // see Splits; what was split in one phase may have other numbers in the next
    const char *ahead = nullptr, *stop = nullptr;

    // What is read next: while this thread waits for the others, it prefetches the beginning of its share.
    void expect(const Matrix& matrix) {
        const i64 bytes = stored_bytes(matrix), share = bytes / team.size;
        const char* start = static_cast<const char*>(matrix.data) + bytes * index / team.size;
        const char* end = start + (share < AHEAD ? share : AHEAD);
        if (stop != end) ahead = start, stop = end;
    }

    // work(0) .. work(items - 1), shared with the others; returns when all of it is done. A thread takes items that follow each
    // other, as memory is read best, and then steals what others have left.
    template <class Work>
    void each(i64 items, const Work& work) {
        Counter* next = team.next[phase % 3];
        const int queues = team.queues();
        split.rows = nullptr;
        for (int other = 0; other < queues; ++other) {
            const int queue = (index + other) % queues;
            const i64 first = items * queue / queues, count = items * (queue + 1) / queues - first;
            for (;;) {
                const i64 item = __atomic_fetch_add(&next[queue].taken, 1, __ATOMIC_RELAXED);
                if (item >= count) break;
                work(first + item);
            }
        }
        // of the phase before: nobody is there any more, and nobody is in the phase after the next
        for (int queue = 0; queue < queues; ++queue) __atomic_store_n(&team.next[(phase + 2) % 3][queue].taken, 0, __ATOMIC_RELAXED);
        ++phase;
        wait();
    }

    void wait() {
        if (team.size == 1) return;
        const i64 round = __atomic_load_n(&team.round, __ATOMIC_RELAXED);
        if (__atomic_add_fetch(&team.arrived, 1, __ATOMIC_ACQ_REL) == team.size) {
            __atomic_store_n(&team.arrived, 0, __ATOMIC_RELAXED);
            __atomic_store_n(&team.round, round + 1, __ATOMIC_RELEASE);
            return;
        }
        for (i64 turns = 0; __atomic_load_n(&team.round, __ATOMIC_ACQUIRE) == round; ++turns) {
            for (int line = 0; line < 4 && ahead < stop; ++line, ahead += 64) __builtin_prefetch(ahead, 0, 2);
            if (turns > 4000) sched_yield();
#if defined(__x86_64__)
            else __builtin_ia32_pause();
#endif
        }
    }
};
