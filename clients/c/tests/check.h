/* check.h - what the tests share: checks that say where they failed, and seeded chance. */
#ifndef CHECK_H
#define CHECK_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(condition, ...)                                             \
    do {                                                                  \
        if (!(condition)) {                                               \
            failures++;                                                   \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                 \
            fputc('\n', stderr);                                          \
        }                                                                 \
    } while (0)

/* chance is splitmix64: a seed gives the same numbers everywhere. */
static uint64_t chance_state;

static inline uint64_t chance(void)
{
    uint64_t z = chance_state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static inline uint64_t below(uint64_t n) { return chance() % n; }

/* seed takes WALSIDECAR_SEED, or the given one, and prints it. */
static inline void seed(uint64_t fallback)
{
    const char *given = getenv("WALSIDECAR_SEED");
    chance_state = given != NULL ? strtoull(given, NULL, 0) : fallback;
    printf("WALSIDECAR_SEED=%" PRIu64 "\n", chance_state);
}

#endif
