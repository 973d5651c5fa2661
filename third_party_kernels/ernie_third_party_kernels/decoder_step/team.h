// Threads that go through one pass together: each phase hands its items out one by one, and ends when all are done. Waiting
// is turning round for a while, as phases are microseconds long, then giving the processor away.
#pragma once
#include <sched.h>

#include "integers.h"

struct Team {
    int size = 1;
    i64 next[3] = {0, 0, 0};  // of the phases before, now and after
    i64 arrived = 0, round = 0;
};

struct Member {
    Team& team;
    float* own;
    i64 phase = 0;
    Kept split = {}, shared = {};  // see Splits; what was split in one phase may have other numbers in the next

    // work(0) .. work(items - 1), shared with the others; returns when all of it is done
    template <class Work>
    void each(i64 items, const Work& work) {
        i64* next = &team.next[phase % 3];
        split.rows = nullptr;
        for (;;) {
            const i64 item = __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
            if (item >= items) break;
            work(item);
        }
        // of the phase before: nobody is there any more, and nobody is in the phase after the next
        __atomic_store_n(&team.next[(phase + 2) % 3], 0, __ATOMIC_RELAXED);
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
            if (turns > 4000) sched_yield();
#if defined(__x86_64__)
            else __builtin_ia32_pause();
#endif
        }
    }
};
