// The k highest of each row, best first; of equal ones the first. A row is looked at once: what is not above the lowest of
// the k best so far is passed over, else it is put in its place among them.
#include "../common.h"

enum { MOST = 64 };

EXPORT void top_experts(const float* scores, i64* out, i64 T, i64 E, i64 k, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (i64 t = 0; t < T; ++t) {
        const float* row = scores + t * E;
        float best[MOST];
        i64 place[MOST], held = 0;
        for (i64 e = 0; e < E; ++e) {
            const float s = row[e];
            if (held == k && !(s > best[k - 1])) continue;
            i64 at = held < k ? held++ : k - 1;
            for (; at > 0 && s > best[at - 1]; --at) best[at] = best[at - 1], place[at] = place[at - 1];
            best[at] = s, place[at] = e;
        }
        for (i64 j = 0; j < k; ++j) out[t * k + j] = place[j];
    }
}
