/* What the load programs share: the two commands on standard input, and a histogram of
 * latencies whose buckets are at most 1/256 of their value wide. */
#ifndef COUNT_H
#define COUNT_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARMING, MEASURING, STOPPED };
enum { SUB_BITS = 8, SUBS = 1 << SUB_BITS, VALUE_BITS = 42, BUCKETS = (VALUE_BITS - SUB_BITS + 1) * SUBS };

typedef struct histogram {
    uint64_t counts[BUCKETS], total, max;
} histogram;

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void record(histogram *h, uint64_t ns)
{
    if (ns >> VALUE_BITS != 0)
        ns = ((uint64_t)1 << VALUE_BITS) - 1;
    int bits = ns < SUBS ? 0 : 64 - __builtin_clzll(ns) - SUB_BITS - 1;
    size_t bucket = ns < SUBS ? (size_t)ns : ((size_t)(bits + 1) << SUB_BITS) + (size_t)(ns >> bits) - SUBS;
    h->counts[bucket]++;
    h->total++;
    if (ns > h->max)
        h->max = ns;
}

static inline double quantile_us(const histogram *h, double q)
{
    uint64_t rank = (uint64_t)(q * (double)h->total + 0.5), seen = 0;
    for (size_t i = 0; i < BUCKETS; i++) {
        seen += h->counts[i];
        if (seen > 0 && seen >= rank) {
            size_t exponent = i < SUBS ? 0 : (i >> SUB_BITS) - 1;
            uint64_t bound = i < SUBS ? i : ((((uint64_t)(i & (SUBS - 1)) + SUBS) + 1) << exponent) - 1;
            return (double)(bound < h->max ? bound : h->max) / 1000;
        }
    }
    return 0;
}

static inline void print_counted(const histogram *h)
{
    printf("{\"appends\":%llu,\"p50_us\":%.3f,\"p99_us\":%.3f,\"p999_us\":%.3f,\"max_us\":%.3f}\n", (unsigned long long)h->total,
           quantile_us(h, 0.5), quantile_us(h, 0.99), quantile_us(h, 0.999), (double)h->max / 1000);
    fflush(stdout);
}

/* random_bytes fills memory with what does not compress. */
static inline void random_bytes(unsigned char *to, size_t bytes)
{
    uint64_t x = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i + sizeof x <= bytes; i += sizeof x) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        memcpy(to + i, &x, sizeof x);
    }
}

/* next_phase reads one command; the end of the input stops too. */
static inline int next_phase(void)
{
    char line[64];
    return fgets(line, sizeof line, stdin) != NULL && strcmp(line, "measure\n") == 0 ? MEASURING : STOPPED;
}

#endif
