/* walsidecar.c - the C client of a walsidecar. What it promises is in walsidecar.h,
 * what it speaks in docs/protocol.md.
 *
 * From top to bottom: errors, bytes, messages, the doors, memory of what is in flight,
 * answers, the connection, waiting, and the functions of the header. There are two
 * doors: the Unix socket (door_...) carries everything, and appends go through a ring in
 * shared memory (ring_...) where the sidecar has one for this connection.
 */
#define _GNU_SOURCE

#include "walsidecar.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdarg.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Limits of the protocol (docs/protocol.md). */
enum {
    HEADER_BYTES = 16,
    MAX_MESSAGE_BYTES = 1310720,
    MAX_HEADERS_BYTES = 16384,
    MAX_TEXT_BYTES = 512,   /* message and hint of an error */
    MAX_NODE_BYTES = 63,
    MAX_STREAMS = 65536     /* of a log */
};

/* Limits of the client. */
enum {
    SMALL_MESSAGE_BYTES = 1024,    /* every message of the client but Append fits */
    CHUNK_BYTES = 256 << 10,       /* unit of memory for outgoing messages */
    FREE_CHUNKS = 8,               /* kept for reuse */
    SEGMENTS = 16,                 /* chunks of one write */
    IN_BYTES = 256 << 10,          /* what one read of the socket takes */
    LEARNED_ERRORS = 64,           /* refusals kept until somebody asks */
    LONE_BYTES = 32 << 10          /* a lone append up to this size is written at once */
};

/* Shared memory (docs/protocol.md): limits, and offsets of the words. */
enum {
    FEATURE_SHM = 1,
    LAYOUT = 1,                    /* version of the layout */
    AREA_HEAD_BYTES = 4096,
    MIN_RING_BYTES = 64 << 10,
    MAX_RING_BYTES = 16 << 20,
    ACKS = 8192,                   /* entries of the completion area */
    ACK_BYTES = 64,
    COMPLETION_BYTES = AREA_HEAD_BYTES + ACKS * ACK_BYTES,
    FILES = 3,                     /* submission, completion, eventfd */
    SUBMISSION_TAIL = 128, SUBMISSION_ACK_WANTED = 256,
    COMPLETION_SLEEP = 512, COMPLETION_ACKS = 640, COMPLETION_WAKE = 768
};

#define SUBMISSION_MAGIC UINT64_C(0x42555344534C4157) /* the bytes WALSDSUB */
#define COMPLETION_MAGIC UINT64_C(0x4C504344534C4157) /* the bytes WALSDCPL */
#define FIRST_RING_REQUEST (UINT64_C(1) << 63 | 1)

#define MS INT64_C(1000000)
#define SECOND (1000 * MS)
#define NEVER INT64_MAX

#define HANDSHAKE_NS (30 * SECOND)     /* for the introduction on a new connection */
#define RECONNECT_FIRST_NS (5 * MS)    /* pause before the second attempt to connect */
#define RECONNECT_LONGEST_NS SECOND
#define RETRY_FIRST_NS (10 * MS)       /* pause before what was refused is sent again */
#define RETRY_LONGEST_NS SECOND
#define SPIN_NS MS                     /* how long WAL_WAIT_SPIN looks before it sleeps */
#define ADAPTIVE_NS INT64_C(50000)     /* the longest that WAL_WAIT_ADAPTIVE looks: a processor wakes up in that */
#define SLEEP_NS MS                    /* one sleep on the acks: the socket wants a look too */
enum { PROBE_EVERY = 64,               /* waits after which looking is tried again */
       SOCKET_EVERY = 16 };            /* rounds with acks after which the socket gets a look */

/* ---- Errors ---------------------------------------------------------------- */

struct error_info {
    int code;
    const char *text; /* name: what to do */
    const char *hint;
    bool retriable;
    bool outcome_unknown;
};

#define ERROR(number, name, retriable, unknown, hint) \
    { WAL_CODE_BASE + number, name ": " hint, hint, retriable, unknown }

/* The table of errors of the protocol, then the client's own. */
static const struct error_info error_table[] = {
    ERROR(1, "internal", 0, 1, "this is a bug in the sidecar: report it with its log"),
    ERROR(2, "bad_request", 0, 0, "correct the request; docs/protocol.md has its layout"),
    ERROR(3, "too_large", 0, 0, "split the batch or shorten the record"),
    ERROR(4, "unsupported", 0, 0, "use a client and a sidecar of versions that go together"),
    ERROR(5, "unauthorized", 0, 0, "run the client as a user or group that the sidecar allows"),
    ERROR(6, "wrong_log", 0, 0, "name a log that this sidecar hosts; status lists them"),
    ERROR(7, "read_only", 0, 0, "this log takes no changes; append to its owner"),
    ERROR(8, "usage", 0, 0, "see --help"),
    ERROR(9, "cancelled", 0, 1, "the caller gave up waiting; the request may take effect"),
    ERROR(10, "outcome_unknown", 0, 1,
          "read the stream, or send it again under the same producer and sequence"),
    ERROR(11, "disconnected", 1, 1, "is the sidecar running, and the socket path right?"),
    ERROR(12, "log_went_back", 0, 0,
          "the log is an older copy of itself, or has forgotten this client: compare its streams with what was answered before, then connect anew"),
    ERROR(20, "not_found", 0, 0, "create it first; names are exact"),
    ERROR(21, "sealed", 0, 0, "a sealed stream takes no more records; use another stream"),
    ERROR(22, "deleted", 0, 0, "the stream is gone; create the name anew for a new stream"),
    ERROR(23, "trimmed", 0, 0, "start from the first offset, or without one"),
    ERROR(24, "data_lost", 0, 0, "run verify on the log, then salvage"),
    ERROR(30, "precondition_failed", 0, 0,
          "another writer came first: read from the actual offset and decide again"),
    ERROR(31, "token_mismatch", 0, 0,
          "another owner set the stream's token: stop, or take it over with the token that is in force"),
    ERROR(32, "duplicate", 0, 0, "the batch is in the log already; nothing to do"),
    ERROR(33, "out_of_sequence", 0, 0, "send the sequence after the last one first"),
    ERROR(34, "sequence_expired", 0, 1,
          "the log has forgotten this sequence's result: keep at most the window unacked"),
    ERROR(35, "producer_expired", 0, 1,
          "open a new producer; what was not answered may be in the log: read to find out"),
    ERROR(36, "window_exceeded", 1, 0,
          "wait for answers before the next batch, or open the producer with a larger window"),
    ERROR(40, "too_many_streams", 0, 0, "delete streams that are no longer used"),
    ERROR(41, "too_many_producers", 0, 0, "remove named producers that are no longer used"),
    ERROR(42, "checkpoint_full", 0, 0,
          "delete streams or producers, or format a larger log: their state has to fit its checkpoint"),
    ERROR(43, "log_full", 1, 0,
          "trim the stream that pins the log, or wait until the store has taken it over"),
    ERROR(44, "store_unavailable", 1, 0,
          "check the object store and its credentials; status has the last error"),
    ERROR(50, "busy", 1, 0, "fewer requests or reads at once, or try again"),
    ERROR(51, "too_many_sessions", 1, 0, "close idle clients, or raise WALSIDECAR_MEMORY"),
    ERROR(52, "out_of_memory", 1, 0, "raise WALSIDECAR_MEMORY, or use fewer clients"),
    ERROR(53, "slow_client", 1, 1, "read the answers as they come"),
    ERROR(54, "idle_client", 1, 0, "ping at a third of the idle time"),
    ERROR(55, "draining", 1, 0, "the sidecar is shutting down: connect again"),
    ERROR(56, "not_ready", 1, 0, "the sidecar is starting: wait for it with wait-ready"),
    ERROR(60, "fenced", 0, 1, "another host owns the log now: connect to its sidecar"),
    ERROR(61, "log_failed", 0, 1,
          "a device write failed or stalled: check the device, restart the sidecar, then resolve what was not answered"),
    ERROR(62, "damaged", 0, 0, "run verify on the log, then salvage"),
    ERROR(63, "not_our_device", 0, 0, "check the path and the node name"),
    ERROR(64, "in_use", 1, 0, "another process holds it: stop it first"),
    { EAGAIN, "would block: wal_poll() and try again", "wal_poll() and try again", true, false },
    { ETIMEDOUT, "timed out: wait again, or longer", "wait again, or longer", true, false },
    { EINVAL, "invalid argument: see walsidecar.h", "see walsidecar.h", false, false },
    { ENOMEM, "the program is out of memory", "", false, false },
    { ENOBUFS, "no room: take results with wal_wait() or wal_flush(), or give a larger buffer",
      "take results with wal_wait() or wal_flush(), or give a larger buffer", true, false },
    { ESTALE, "the ticket's answer was taken before, or goes to a callback", "", false, false },
    { EDEADLK, "not allowed inside a callback", "", false, false },
    { ECANCELED, "the client was closed: nothing was sent", "", false, false },
    { E2BIG, "a struct has fields that this library does not know: use a newer one", "", false, false },
};

static const struct error_info *error_info(int error)
{
    int code = error < 0 ? -error : error;
    for (size_t i = 0; i < sizeof error_table / sizeof error_table[0]; i++)
        if (error_table[i].code == code)
            return &error_table[i];
    return NULL;
}

const char *wal_strerror(int error)
{
    if (error >= 0 && error < WAL_CODE_BASE && error_info(error) == NULL)
        return error == 0 ? "ok" : "not an error of walsidecar";
    const struct error_info *info = error_info(error);
    return info != NULL ? info->text : "unknown error: the sidecar is newer than this library";
}

/* api turns a code of the protocol into what functions return. */
static int api(unsigned code) { return -(WAL_CODE_BASE + (int)code); }

/* failure is everything that is known of one failure. */
struct failure {
    int code; /* as functions return it */
    bool outcome_unknown, logged;
    bool has_actual, has_offset, has_position;
    int64_t entry;
    uint64_t actual, offset, position;
    char stream[WAL_MAX_NAME + 1];
    char message[MAX_TEXT_BYTES + 256];
    char hint[MAX_TEXT_BYTES + 1];
};

/* copy_text copies n bytes as far as they fit, and ends them with NUL. */
static void copy_text(char *to, size_t capacity, const void *from, size_t n)
{
    if (n > capacity - 1)
        n = capacity - 1;
    if (n > 0)
        memcpy(to, from, n);
    to[n] = 0;
}

/* fail_with fills in a failure of the client's own. */
__attribute__((format(printf, 4, 5)))
static int fail_with(struct failure *f, int code, const char *stream, const char *format, ...)
{
    const struct error_info *info = error_info(code);
    memset(f, 0, offsetof(struct failure, stream));
    f->code = code;
    f->entry = -1;
    f->outcome_unknown = code == -WAL_OUTCOME_UNKNOWN;
    copy_text(f->stream, sizeof f->stream, stream, strlen(stream));
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(f->message, sizeof f->message, format, arguments);
    va_end(arguments);
    const char *hint = info != NULL ? info->hint : "";
    copy_text(f->hint, sizeof f->hint, hint, strlen(hint));
    return code;
}

/* ---- Bytes ----------------------------------------------------------------- */

static int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec;
}

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static size_t padding(size_t n) { return -n & 7; }

static uint64_t load64(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static uint32_t load32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint16_t load16(const unsigned char *p) { return (uint16_t)(p[0] | p[1] << 8); }

static void store(unsigned char *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++, v >>= 8)
        p[i] = (unsigned char)v;
}

/* scan reads a body from front to back. Once it went beyond the end it gives zeros
 * and bad stays true: no decoder can read outside of its message. */
struct scan {
    const unsigned char *b;
    size_t n, at;
    bool bad;
};

static const unsigned char nothing[8];

static const unsigned char *take(struct scan *s, size_t n)
{
    if (s->bad || n > s->n - s->at) {
        s->bad = true;
        return NULL;
    }
    const unsigned char *p = n > 0 ? s->b + s->at : nothing;
    s->at += n;
    return p;
}

static uint64_t get64(struct scan *s)
{
    const unsigned char *p = take(s, 8);
    return p != NULL ? load64(p) : 0;
}

static uint32_t get32(struct scan *s)
{
    const unsigned char *p = take(s, 4);
    return p != NULL ? load32(p) : 0;
}

static uint16_t get16(struct scan *s)
{
    const unsigned char *p = take(s, 2);
    return p != NULL ? load16(p) : 0;
}

/* zero skips n bytes that must be zero. */
static void zero(struct scan *s, size_t n)
{
    const unsigned char *p = take(s, n);
    for (size_t i = 0; p != NULL && i < n; i++)
        if (p[i] != 0)
            s->bad = true;
}

static void align(struct scan *s) { zero(s, padding(s->at)); }

/* done says whether the body was read to its end, but for padding. */
static bool done(struct scan *s)
{
    align(s);
    return !s->bad && s->at == s->n;
}

/* text takes n bytes into a string. */
static void text(struct scan *s, size_t n, char *to, size_t capacity)
{
    const unsigned char *p = take(s, n);
    copy_text(to, capacity, p != NULL ? p : nothing, p != NULL ? n : 0);
}

/* xxhash64 (Yann Collet's XXH64, seed 0) of up to 3 parts in a row. */
#define XX1 UINT64_C(0x9E3779B185EBCA87)
#define XX2 UINT64_C(0xC2B2AE3D27D4EB4F)
#define XX3 UINT64_C(0x165667B19E3779F9)
#define XX4 UINT64_C(0x85EBCA77C2B2AE63)
#define XX5 UINT64_C(0x27D4EB2F165667C5)

static uint64_t rotate(uint64_t v, int n) { return v << n | v >> (64 - n); }
static uint64_t xx_round(uint64_t a, uint64_t v) { return rotate(a + v * XX2, 31) * XX1; }
static uint64_t xx_merge(uint64_t h, uint64_t a) { return (h ^ xx_round(0, a)) * XX1 + XX4; }

struct xxhash {
    uint64_t a[4];
    uint64_t total;
    unsigned char rest[32];
    size_t held;
};

static void xx_stripe(struct xxhash *x, const unsigned char *p)
{
    for (int i = 0; i < 4; i++)
        x->a[i] = xx_round(x->a[i], load64(p + 8 * i));
}

static void xx_add(struct xxhash *x, const void *data, size_t n)
{
    const unsigned char *p = data;
    x->total += n;
    if (x->held > 0) {
        size_t more = sizeof x->rest - x->held < n ? sizeof x->rest - x->held : n;
        if (more > 0)
            memcpy(x->rest + x->held, p, more);
        x->held += more;
        p += more;
        n -= more;
        if (x->held < sizeof x->rest)
            return;
        xx_stripe(x, x->rest);
        x->held = 0;
    }
    for (; n >= 32; p += 32, n -= 32)
        xx_stripe(x, p);
    if (n > 0)
        memcpy(x->rest, p, n);
    x->held = n;
}

static uint64_t xx_sum(const struct xxhash *x)
{
    uint64_t h = XX5;
    if (x->total >= 32) {
        h = rotate(x->a[0], 1) + rotate(x->a[1], 7) + rotate(x->a[2], 12) + rotate(x->a[3], 18);
        for (int i = 0; i < 4; i++)
            h = xx_merge(h, x->a[i]);
    }
    h += x->total;
    size_t at = 0;
    for (; at + 8 <= x->held; at += 8)
        h = rotate(h ^ xx_round(0, load64(x->rest + at)), 27) * XX1 + XX4;
    for (; at + 4 <= x->held; at += 4)
        h = rotate(h ^ load32(x->rest + at) * XX1, 23) * XX2 + XX3;
    for (; at < x->held; at++)
        h = rotate(h ^ x->rest[at] * XX5, 11) * XX1;
    h = (h ^ h >> 33) * XX2;
    h = (h ^ h >> 29) * XX3;
    return h ^ h >> 32;
}

static void xx_begin(struct xxhash *x)
{
    *x = (struct xxhash){ .a = { XX1 + XX2, XX2, 0, -XX1 } };
}

/* map is a hash table of numbers, each with a number and a string of its own. */
struct slot {
    uint64_t key, value;
    char *name; /* may be NULL */
    bool used;
};

struct map {
    struct slot *slots;
    size_t capacity, count; /* capacity is 0 or a power of two */
};

static struct slot *map_find(const struct map *m, uint64_t key)
{
    if (m->capacity == 0)
        return NULL;
    for (size_t i = (size_t)(key * XX1 >> 32);; i++) {
        struct slot *s = &m->slots[i & (m->capacity - 1)];
        if (!s->used)
            return NULL;
        if (s->key == key)
            return s;
    }
}

static struct slot *map_place(struct map *m, uint64_t key)
{
    for (size_t i = (size_t)(key * XX1 >> 32);; i++) {
        struct slot *s = &m->slots[i & (m->capacity - 1)];
        if (!s->used) {
            s->used = true;
            s->key = key;
            m->count++;
            return s;
        }
    }
}

/* map_add returns the slot of key, a new one if need be; NULL without memory. */
static struct slot *map_add(struct map *m, uint64_t key)
{
    struct slot *found = map_find(m, key);
    if (found != NULL)
        return found;
    if (m->count >= m->capacity / 2) {
        struct map larger = { .capacity = m->capacity > 0 ? 2 * m->capacity : 16 };
        larger.slots = calloc(larger.capacity, sizeof *larger.slots);
        if (larger.slots == NULL)
            return NULL;
        for (size_t i = 0; i < m->capacity; i++)
            if (m->slots[i].used)
                *map_place(&larger, m->slots[i].key) = m->slots[i];
        free(m->slots);
        *m = larger;
    }
    return map_place(m, key);
}

static void map_clear(struct map *m)
{
    for (size_t i = 0; i < m->capacity; i++)
        free(m->slots[i].name);
    free(m->slots);
    *m = (struct map){ 0 };
}

/* ---- Messages -------------------------------------------------------------- */

#define MAGIC UINT64_C(0x50524344534C4157) /* the bytes WALSDCRP */
enum { VERSION = 1 };                      /* the lowest and the highest that this client speaks */

enum type {
    HELLO = 1, PING = 2, STATUS = 3, SHM_OPEN = 4, PAD = 5, APPEND = 8,
    STREAM_OPEN = 16, STREAM_SEAL = 17, STREAM_DELETE = 18, STREAM_TOKEN = 19,
    STREAM_TRIM = 20, STREAM_STAT = 21, STREAM_LIST = 22,
    PRODUCER_OPEN = 24, PRODUCER_GET = 25, PRODUCER_REMOVE = 26,
    READ = 32, REPLAY = 33, CREDIT = 34, CANCEL = 35,
    WELCOME = 64, GOODBYE = 65, PONG = 66, STATUS_JSON = 67, ERROR_MESSAGE = 68, SHM_INFO = 69,
    APPEND_ACK = 72, APPEND_RESULT = 73,
    STREAM_INFO = 80, STREAM_PAGE = 81, TRIMMED = 82, PRODUCER_INFO = 88,
    RECORDS = 96, REPLAY_BATCHES = 97, GAP = 98, CAUGHT_UP = 99, HEARTBEAT = 100, END = 101
};

/* Flags in headers of messages and of entries. */
enum {
    FLAG_PRODUCER = 1, FLAG_CREATE = 1, FLAG_FOLLOW = 1, FLAG_DUPLICATE = 1,
    FLAG_NOT_DURABLE = 1, FLAG_READ_ONLY = 2,
    FLAG_ENTRY = 1, FLAG_ACTUAL = 2, FLAG_STREAM = 4, FLAG_OFFSET = 8, FLAG_POSITION = 16,
    FLAG_LOGGED = 32, ERROR_FLAGS = 63,
    FLAG_CREATED = 1, FLAG_REMOVED = 2,
    ENTRY_EXPECT = 1, RECORD_BATCH_END = 1, STREAM_FLAGS = 15
};

/* Where the fields lie in an Append that has a producer part. */
enum { AT_REQUEST = 8, AT_PRODUCER = 16, AT_SEQUENCE = 24, AT_ACKED = 32 };

struct header {
    uint32_t length;
    uint16_t type, flags;
    uint64_t request;
};

/* decode_header says whether the 16 bytes at p are a header within the limits. */
static bool decode_header(const unsigned char *p, struct header *h)
{
    *h = (struct header){ load32(p), load16(p + 4), load16(p + 6), load64(p + 8) };
    return h->length >= HEADER_BYTES && h->length <= MAX_MESSAGE_BYTES && h->length % 8 == 0;
}

/* encoder writes a message into memory that is large enough for it. */
struct encoder {
    unsigned char *start, *at;
};

static void put(struct encoder *e, uint64_t v, int bytes)
{
    store(e->at, v, bytes);
    e->at += bytes;
}

static void put_bytes(struct encoder *e, const void *p, size_t n)
{
    if (n > 0)
        memcpy(e->at, p, n);
    e->at += n;
}

static void put_padding(struct encoder *e)
{
    size_t n = padding((size_t)(e->at - e->start));
    memset(e->at, 0, n);
    e->at += n;
}

static struct encoder begin(unsigned char *to, enum type type, unsigned flags, uint64_t request)
{
    struct encoder e = { to, to };
    put(&e, 0, 4);
    put(&e, type, 2);
    put(&e, flags, 2);
    put(&e, request, 8);
    return e;
}

static size_t finish_message(struct encoder *e)
{
    put_padding(e);
    size_t n = (size_t)(e->at - e->start);
    store(e->start, n, 4);
    return n;
}

/* The encoders return the length of the message. The caller has checked that
 * strings are within the limits. */
static size_t encode_hello(unsigned char *to, unsigned lowest, unsigned highest, uint64_t features,
                           const char *log, const char *client)
{
    struct encoder e = begin(to, HELLO, 0, 0);
    put(&e, MAGIC, 8);
    put(&e, features, 8);
    put(&e, lowest, 2);
    put(&e, highest, 2);
    put(&e, strlen(log), 2);
    put(&e, strlen(client), 2);
    put_bytes(&e, log, strlen(log));
    put_bytes(&e, client, strlen(client));
    return finish_message(&e);
}

/* encode_numbers encodes a message whose body is numbers of 64 bits. */
static size_t encode_numbers(unsigned char *to, enum type type, unsigned flags, uint64_t request,
                             const uint64_t *numbers, size_t count)
{
    struct encoder e = begin(to, type, flags, request);
    for (size_t i = 0; i < count; i++)
        put(&e, numbers[i], 8);
    return finish_message(&e);
}

/* encode_name encodes a StreamOpen or a ProducerRemove. */
static size_t encode_name(unsigned char *to, enum type type, unsigned flags, uint64_t request,
                          const char *name)
{
    struct encoder e = begin(to, type, flags, request);
    put(&e, strlen(name), 2);
    put(&e, 0, 6);
    put_bytes(&e, name, strlen(name));
    return finish_message(&e);
}

static size_t encode_token(unsigned char *to, uint64_t request, uint64_t stream, const void *before,
                           size_t before_bytes, const void *after, size_t after_bytes)
{
    struct encoder e = begin(to, STREAM_TOKEN, 0, request);
    put(&e, stream, 8);
    put(&e, before_bytes, 2);
    put(&e, after_bytes, 2);
    put(&e, 0, 4);
    put_bytes(&e, before, before_bytes);
    put_bytes(&e, after, after_bytes);
    return finish_message(&e);
}

static size_t encode_list(unsigned char *to, uint64_t request, uint32_t limit, const char *prefix,
                          const char *after)
{
    struct encoder e = begin(to, STREAM_LIST, 0, request);
    put(&e, limit, 4);
    put(&e, strlen(prefix), 2);
    put(&e, strlen(after), 2);
    put_bytes(&e, prefix, strlen(prefix));
    put_bytes(&e, after, strlen(after));
    return finish_message(&e);
}

static size_t encode_producer_open(unsigned char *to, uint64_t request, uint32_t window, const char *name)
{
    struct encoder e = begin(to, PRODUCER_OPEN, 0, request);
    put(&e, window, 4);
    put(&e, strlen(name), 2);
    put(&e, 0, 2);
    put_bytes(&e, name, strlen(name));
    return finish_message(&e);
}

static size_t encode_producer_get(unsigned char *to, uint64_t request, uint64_t id, const char *name)
{
    struct encoder e = begin(to, PRODUCER_GET, 0, request);
    put(&e, id, 8);
    put(&e, strlen(name), 2);
    put(&e, 0, 6);
    put_bytes(&e, name, strlen(name));
    return finish_message(&e);
}

/* encode_read: from is 0 offset, 1 time, 2 last. */
static size_t encode_read(unsigned char *to, bool follow, uint64_t request, uint64_t stream, unsigned from,
                          uint64_t value, uint64_t max_records, uint64_t credit)
{
    struct encoder e = begin(to, READ, follow ? FLAG_FOLLOW : 0, request);
    put(&e, stream, 8);
    put(&e, value, 8);
    put(&e, max_records, 8);
    put(&e, credit, 8);
    put(&e, from, 4);
    put(&e, 0, 4);
    return finish_message(&e);
}

/* entry is one record of an Append on its way into a message. Its headers are those
 * of the options and then its own. */
struct entry {
    uint64_t stream, expect;
    bool has_expect;
    const void *token, *data;
    size_t token_bytes, data_bytes, block_bytes; /* block_bytes: of the headers block */
    const wal_header *headers[2];
    size_t header_counts[2];
};

static size_t entry_bytes(const struct entry *e)
{
    size_t n = 16 + (e->has_expect ? 8 : 0) + e->token_bytes + e->block_bytes + e->data_bytes;
    return n + padding(n);
}

static size_t key_bytes(const wal_header *h) { return h->key_bytes > 0 ? h->key_bytes : strlen(h->key); }

static void put_entry(struct encoder *e, const struct entry *entry)
{
    put(e, entry->stream, 8);
    put(e, entry->data_bytes, 4);
    put(e, entry->block_bytes, 2);
    put(e, entry->token_bytes, 1);
    put(e, entry->has_expect ? ENTRY_EXPECT : 0, 1);
    if (entry->has_expect)
        put(e, entry->expect, 8);
    put_bytes(e, entry->token, entry->token_bytes);
    if (entry->block_bytes > 0)
        put(e, entry->header_counts[0] + entry->header_counts[1], 2);
    for (int from = 0; from < 2; from++)
        for (size_t i = 0; i < entry->header_counts[from]; i++) {
            const wal_header *h = &entry->headers[from][i];
            put(e, key_bytes(h), 2);
            put(e, h->value_bytes, 4);
            put_bytes(e, h->key, key_bytes(h));
            put_bytes(e, h->value, h->value_bytes);
        }
    put_bytes(e, entry->data, entry->data_bytes);
    put_padding(e);
}

/* begin_append begins an Append; its entries follow, then finish_message. */
static struct encoder begin_append(unsigned char *to, uint64_t request, bool has_producer, uint64_t producer,
                                   uint64_t sequence, uint64_t acked, size_t count)
{
    struct encoder e = begin(to, APPEND, has_producer ? FLAG_PRODUCER : 0, request);
    if (has_producer) {
        put(&e, producer, 8);
        put(&e, sequence, 8);
        put(&e, acked, 8);
    }
    put(&e, count, 8); /* u32, and u32 zero */
    return e;
}

struct welcome {
    bool not_durable, read_only;
    uint16_t version;
    uint64_t features, session, epoch, durable, trim, max_request_bytes;
    unsigned char log[16];
    uint32_t max_message_bytes, max_batch_records, max_batch_bytes, max_requests, max_reads;
    uint32_t heartbeat_ms, idle_ms, slow_ms;
    char node[MAX_NODE_BYTES + 1], server[256];
};

/* The decoders say whether the body is well formed. */
static bool decode_welcome(const struct header *h, struct scan s, struct welcome *m)
{
    m->not_durable = (h->flags & FLAG_NOT_DURABLE) != 0;
    m->read_only = (h->flags & FLAG_READ_ONLY) != 0;
    m->version = get16(&s);
    size_t node = get16(&s), server = get16(&s);
    zero(&s, 2);
    m->features = get64(&s);
    m->session = get64(&s);
    const unsigned char *log = take(&s, sizeof m->log);
    if (log != NULL)
        memcpy(m->log, log, sizeof m->log);
    m->epoch = get64(&s);
    m->durable = get64(&s);
    m->trim = get64(&s);
    m->max_request_bytes = get64(&s);
    m->max_message_bytes = get32(&s);
    m->max_batch_records = get32(&s);
    m->max_batch_bytes = get32(&s);
    m->max_requests = get32(&s);
    m->max_reads = get32(&s);
    m->heartbeat_ms = get32(&s);
    m->idle_ms = get32(&s);
    m->slow_ms = get32(&s);
    text(&s, node, m->node, sizeof m->node);
    text(&s, server, m->server, sizeof m->server);
    return done(&s) && (h->flags & ~(FLAG_NOT_DURABLE | FLAG_READ_ONLY)) == 0;
}

/* decode_goodbye makes the reason of a Goodbye a failure. */
static bool decode_goodbye(const struct header *h, struct scan s, struct failure *f)
{
    char message[MAX_TEXT_BYTES + 1];
    unsigned code = get16(&s);
    size_t n = get16(&s);
    zero(&s, 4);
    text(&s, n, message, sizeof message);
    if (!done(&s) || h->flags != 0)
        return false;
    fail_with(f, api(code), "", "%s", message);
    return true;
}

/* decode_numbers decodes a body of numbers of 64 bits. */
static bool decode_numbers(const struct header *h, struct scan s, uint64_t *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        numbers[i] = get64(&s);
    return done(&s) && h->flags == 0;
}

/* decode_status points *json into the body. */
static bool decode_status(const struct header *h, struct scan s, const unsigned char **json, size_t *bytes)
{
    *bytes = get32(&s);
    zero(&s, 4);
    *json = take(&s, *bytes);
    return done(&s) && h->flags == 0;
}

/* decode_error makes an Error a failure; *stream is the id that it names. */
static bool decode_error(const struct header *h, struct scan s, struct failure *f, uint64_t *stream)
{
    char message[MAX_TEXT_BYTES + 1], hint[MAX_TEXT_BYTES + 1], name[WAL_MAX_NAME + 1];
    unsigned code = get16(&s);
    size_t name_bytes = get16(&s);
    uint32_t entry = get32(&s);
    uint64_t actual = get64(&s);
    *stream = get64(&s);
    uint64_t offset = get64(&s), position = get64(&s);
    size_t message_bytes = get16(&s), hint_bytes = get16(&s);
    zero(&s, 4);
    text(&s, name_bytes, name, sizeof name);
    text(&s, message_bytes, message, sizeof message);
    text(&s, hint_bytes, hint, sizeof hint);
    if (!done(&s) || (h->flags & ~ERROR_FLAGS) != 0)
        return false;
    const struct error_info *info = error_info(api(code));
    fail_with(f, api(code), name, "%s", message);
    f->outcome_unknown = info == NULL || info->outcome_unknown;
    f->logged = (h->flags & FLAG_LOGGED) != 0;
    if ((h->flags & FLAG_ENTRY) != 0)
        f->entry = entry;
    f->has_actual = (h->flags & FLAG_ACTUAL) != 0;
    f->has_offset = (h->flags & FLAG_OFFSET) != 0;
    f->has_position = (h->flags & FLAG_POSITION) != 0;
    f->actual = actual;
    f->offset = offset;
    f->position = position;
    if (hint[0] != 0)
        copy_text(f->hint, sizeof f->hint, hint, strlen(hint));
    return true;
}

struct extent {
    uint64_t request, stream, offset, position;
    uint32_t requests, records, step;
};

/* decode_ack reads the count of an AppendAck; its extents follow. */
static bool decode_ack(const struct header *h, struct scan *s, uint32_t *count)
{
    *count = get32(s);
    zero(s, 4);
    return !s->bad && h->flags == 0 && (uint64_t)*count * 48 == s->n - s->at;
}

static bool decode_extent(struct scan *s, struct extent *e)
{
    e->request = get64(s);
    e->stream = get64(s);
    e->offset = get64(s);
    e->position = get64(s);
    e->requests = get32(s);
    e->records = get32(s);
    e->step = get32(s);
    zero(s, 4);
    return !s->bad && e->requests > 0 && e->records > 0;
}

struct append_result {
    bool duplicate;
    uint64_t position, last_sequence;
    uint32_t placed;
};

/* decode_result reads the fixed part of an AppendResult; what was placed follows. */
static bool decode_result(const struct header *h, struct scan *s, struct append_result *m)
{
    m->duplicate = (h->flags & FLAG_DUPLICATE) != 0;
    m->position = get64(s);
    m->last_sequence = get64(s);
    m->placed = get32(s);
    zero(s, 4);
    return !s->bad && (h->flags & ~FLAG_DUPLICATE) == 0 && (uint64_t)m->placed * 24 == s->n - s->at;
}

static bool decode_placed(struct scan *s, wal_placed *p)
{
    p->stream_id = get64(s);
    p->first = get64(s);
    p->count = get32(s);
    p->entry = 0;
    zero(s, 4);
    return !s->bad;
}

static bool decode_stream(struct scan *s, wal_stream_info *info)
{
    memset(info, 0, sizeof *info);
    info->id = get64(s);
    info->first_offset = get64(s);
    info->next_offset = get64(s);
    info->created_ns = (int64_t)get64(s);
    info->last_ns = (int64_t)get64(s);
    info->flags = get16(s);
    size_t n = get16(s);
    zero(s, 4);
    text(s, n, info->name, sizeof info->name);
    info->name_bytes = (uint32_t)n;
    align(s);
    return !s->bad && n < sizeof info->name && (info->flags & ~(uint32_t)STREAM_FLAGS) == 0;
}

static bool decode_stream_info(const struct header *h, struct scan s, wal_stream_info *info)
{
    return decode_stream(&s, info) && done(&s) && h->flags == 0;
}

/* decode_page reads the fixed part of a StreamPage; its streams follow, then next. */
static bool decode_page(const struct header *h, struct scan *s, uint32_t *count, size_t *next_bytes)
{
    *count = get32(s);
    *next_bytes = get16(s);
    zero(s, 2);
    return !s->bad && h->flags == 0 && *count <= (s->n - s->at) / 48;
}

struct producer_info {
    uint64_t id, last_sequence;
    uint32_t window;
    bool created, removed;
    char name[WAL_MAX_NAME + 1];
};

static bool decode_producer_info(const struct header *h, struct scan s, struct producer_info *m)
{
    m->created = (h->flags & FLAG_CREATED) != 0;
    m->removed = (h->flags & FLAG_REMOVED) != 0;
    m->id = get64(&s);
    m->last_sequence = get64(&s);
    m->window = get32(&s);
    size_t n = get16(&s);
    zero(&s, 2);
    text(&s, n, m->name, sizeof m->name);
    return done(&s) && (h->flags & ~(FLAG_CREATED | FLAG_REMOVED)) == 0;
}

struct shm_info {
    uint16_t layout;
    uint32_t max_message_bytes, max_requests;
    uint64_t ring_bytes, completion_bytes;
};

static bool decode_shm_info(const struct header *h, struct scan s, struct shm_info *m)
{
    m->layout = get16(&s);
    zero(&s, 2);
    m->max_message_bytes = get32(&s);
    m->max_requests = get32(&s);
    zero(&s, 4);
    m->ring_bytes = get64(&s);
    m->completion_bytes = get64(&s);
    return done(&s) && h->flags == 0;
}

/* decode_batches reads the fixed part of Records (names is 0) or ReplayBatches; the
 * names and then the records follow. */
static bool decode_batches(const struct header *h, struct scan *s, uint32_t *records, uint32_t *names)
{
    *records = get32(s);
    *names = get32(s);
    if (s->bad || h->flags != 0 || (h->type == RECORDS && *names != 0))
        return false;
    size_t left = s->n - s->at;
    return *records <= left / 48 && *names <= left / 16;
}

static bool decode_stream_name(struct scan *s, uint64_t *stream, const unsigned char **name, size_t *bytes)
{
    *stream = get64(s);
    *bytes = get16(s);
    zero(s, 6);
    *name = take(s, *bytes);
    align(s);
    return !s->bad;
}

/* decode_record points into the body; *checksum is the one that came with it. */
static bool decode_record(struct scan *s, wal_item *item, uint64_t *checksum)
{
    item->stream_id = get64(s);
    item->offset = get64(s);
    item->position = get64(s);
    item->timestamp_ns = (int64_t)get64(s);
    *checksum = get64(s);
    item->data_bytes = get32(s);
    item->header_bytes = get16(s);
    unsigned flags = get16(s);
    item->batch_end = (flags & RECORD_BATCH_END) != 0;
    item->headers = take(s, item->header_bytes);
    item->data = take(s, item->data_bytes);
    align(s);
    return !s->bad && (flags & ~(unsigned)RECORD_BATCH_END) == 0;
}

/* record_checksum computes the checksum that the log keeps of a record. */
static uint64_t record_checksum(const wal_item *r)
{
    unsigned char head[32];
    store(head, r->stream_id, 8);
    store(head + 8, r->offset, 8);
    store(head + 16, (uint64_t)r->timestamp_ns, 8);
    store(head + 24, r->header_bytes, 4);
    store(head + 28, r->data_bytes, 4);
    struct xxhash x;
    xx_begin(&x);
    xx_add(&x, head, sizeof head);
    xx_add(&x, r->headers, r->header_bytes);
    xx_add(&x, r->data, r->data_bytes);
    return xx_sum(&x);
}

static bool decode_gap(const struct header *h, struct scan s, wal_item *item)
{
    item->stream_id = get64(&s);
    item->from = get64(&s);
    item->to = get64(&s);
    item->gap = (int)get32(&s);
    zero(&s, 4);
    return done(&s) && h->flags == 0;
}

/* ---- The client's state ----------------------------------------------------- */

/* chunk holds consecutive encoded messages. Its bytes stay where they are until
 * nothing in it is needed. */
struct chunk {
    struct chunk *next;
    unsigned char *buf;
    size_t capacity, length;
    size_t sent;   /* of length, taken by the door */
    size_t live;   /* messages that may be needed again */
    bool queued;
    struct outgoing *home;
};

/* ring is the shared memory of a connection: this client's ends of both areas. */
struct ring {
    unsigned char *submission, *completion;
    size_t size, max_message, max_requests; /* bytes of the ring; limits */
    int bell;                /* eventfd that wakes the sidecar */
    uint64_t position, free; /* end of the newest message; everything below free may be overwritten */
    uint64_t next_id;        /* of the next message */
    uint64_t taken;          /* acks */
    uint32_t kicked;         /* the sidecar's sleep that it was kicked out of last */
    uint32_t slept;          /* generation of this client's sleep; odd while it sleeps */
    int64_t budget;          /* how long looking for acks pays */
    unsigned waits, rounds;
};

/* outgoing is the memory of all that was submitted and not answered: what is to be
 * written, and what would have to be sent again. */
struct outgoing {
    struct chunk *first, *last; /* with bytes to send; and the last one */
    struct chunk *spare;
    size_t spares;
    size_t unsent;              /* bytes */
};

/* stream_ref is what the client knows of a stream that it appends to. */
struct stream_ref {
    struct stream_ref *next; /* in its row of the table */
    uint64_t hash;           /* of the name */
    uint64_t id;
    uint64_t batch;          /* the newest batch that was seen to name it */
    size_t uses;
    bool known;              /* in the table */
    char name[WAL_MAX_NAME + 1];
};

/* producer_ref is a named producer that was opened. */
struct producer_ref {
    struct producer_ref *next;
    uint64_t id;
    char name[WAL_MAX_NAME + 1];
};

/* target is a distinct stream of a batch. */
struct target {
    struct stream_ref *stream;
    uint32_t entry; /* the first that names it */
};

/* pending is where the answer to a submission waits to be taken. */
struct pending {
    struct pending *previous, *next; /* kept: in the order of submission; answered: to be called */
    wal_ticket ticket;
    uint64_t serial;
    bool answered, abandoned;
    wal_done *done;
    void *opaque;
    wal_result result;
    wal_placed *placed;
    struct failure *failure; /* NULL: none, or no memory for it */
};

/* request is one append that was submitted and not answered. */
struct request {
    struct pending *pending;    /* NULL: answered */
    struct target one, *targets; /* one: of a single record; else the targets of a batch */
    size_t target_count;        /* 0: a single record */
    uint64_t serial;
    struct chunk *chunk;        /* where the message is */
    size_t at, size;
    uint64_t end;               /* of the message in the ring of this connection; 0: not there */
    uint64_t id;                /* on this connection; 0: it was not put on one */
    uint64_t sequence;          /* under the session producer; 0: it has a named one */
    size_t slots;               /* of the session producer's window */
    bool sent;                  /* on an earlier connection, and not known to be refused there */
    bool held;                  /* refused without using up its sequence; sent again after the stall */
    bool absent;                /* the log is known not to have it */
};

/* flight holds the requests in flight in the order of submission. All before next
 * were answered on this connection. */
struct flight {
    struct request *ring; /* length a power of two */
    size_t mask;
    uint64_t head, tail, next;
    size_t bytes, slots;
};

/* session_producer is the producer that the log issued to this client. Sequences
 * grow by one from request to request, in the order of the flight. */
struct session_producer {
    uint64_t id;      /* 0: none yet */
    uint64_t next;    /* sequence of the next request */
    uint64_t used_up; /* the highest that the log is known to have used up */
    uint64_t acked;   /* every sequence below it was answered */
    uint32_t window;  /* slots */
    bool renew;       /* the id must not be used on another connection */

    /* Results that the log keeps beside those of the flight: of requests that were answered
     * while one before them was not, and that a rebuild has dropped. */
    size_t kept;         /* their slots */
    uint64_t kept_up_to; /* the highest of their sequences */
};

/* stall is the time after a request was refused without using up its sequence: the
 * sidecar then refuses every later one too, until that sequence comes again. Nothing
 * is submitted until all in flight have been answered; those to be sent again are
 * held, and then sent in order under new sequences. So a sequence is never used for
 * other bytes while a request that carried it is on its way. */
struct stall {
    bool active;
    bool certain;        /* what follows in flight is refused, whatever becomes of the connection */
    bool doubt;          /* the outcome of one under the producer that expired is unknown */
    bool full;           /* the log was full: what follows fails too; else it is held */
    int64_t resume_at;   /* when the held ones are sent again; NEVER: not decided */
    unsigned retries;    /* in a row without an append that succeeded */
};

enum call_kind { ASKED, LEARN_STREAM, LEARN_PRODUCER, LEARN_SESSION, SIGN_OF_LIFE };

/* call is a request with one answer, other than an append. */
struct call {
    struct call *next;
    enum call_kind kind;
    uint64_t id;              /* on this connection; 0: to be asked on the next one */
    unsigned char question[SMALL_MESSAGE_BYTES];
    size_t size;
    enum type want;
    bool repeat;              /* asking twice does no harm */
    bool create;              /* LEARN_STREAM */
    bool answered, abandoned;
    struct header header;
    unsigned char *body;      /* of the answer to an ASKED one */
    struct failure failure;   /* code 0: none */
    char name[WAL_MAX_NAME + 1];
};

/* learned is a refusal of what an append had to know. */
struct learned {
    struct learned *next;
    enum call_kind kind;
    bool create;
    char name[WAL_MAX_NAME + 1];
    struct failure failure;
};

enum read_state {
    READ_ASK,         /* to be asked for when there is a connection, from ask_at on */
    READ_OPEN,
    READ_INTERRUPTED, /* the connection was lost; what came is to be taken first */
    READ_ENDED
};

/* arrived is one message of a read. */
struct arrived {
    struct arrived *next;
    struct header header;
    unsigned char body[];
};

struct wal_read {
    wal *w;
    wal_read *next;
    uint64_t id;
    enum read_state state;
    bool closed;               /* by its owner; waits for the sidecar's End */
    bool replay, follow, caught_up, began, end_told;
    int start;                 /* with value: where it goes on */
    uint64_t value, asked_value;
    uint64_t stream_id;
    uint64_t limit, count, cut; /* cut: records delivered of the unfinished batch at value */
    size_t read_ahead, consumed, waiting; /* bytes */
    struct arrived *first, *last, *current;
    struct scan scan;          /* of current */
    uint32_t left;             /* records in it */
    int64_t ask_at;
    unsigned failures;
    struct map names;          /* of the streams of a replay */
    struct map partial;        /* of the unfinished batch at value: the last offset of each stream */
    struct failure failure;    /* code 0: none */
    char stream[WAL_MAX_NAME + 1];
};

enum state { DOWN, INTRODUCING, OPENING_RING, CLAIMING, ASKING_PRODUCER, OPENING_PRODUCER, UP };

enum { STREAM_ROWS = 1024 };

struct wal {
    _Atomic uint64_t durable;
    struct sockaddr_un address;
    char log[MAX_NODE_BYTES + 1], name[WAL_MAX_NAME + 1];
    uint32_t in_flight;
    size_t in_flight_bytes;
    int64_t give_up_ns;
    bool wait_while_full;
    int door, waiting;       /* of enum wal_door and wal_waiting */
    bool alone;              /* it and the sidecar have one processor: looking for acks never pays */

    int ended;               /* why the client ended; 0 while it lives */
    struct failure end;      /* the same */
    struct failure lost;     /* why there is no connection */
    struct failure last;     /* for wal_last_error */
    wal_error error;

    int socket;              /* the door; -1: closed */
    struct ring *ring;       /* of this connection; NULL: appends go over the socket */
    int files[FILES];        /* descriptors that came with the newest bytes */
    size_t file_count;
    struct producer_ref *claiming;
    enum state state;
    bool known;              /* there was a connection before */
    bool crowded;            /* the newest attempt failed because many connect at once */
    bool drop;               /* the connection must be ended */
    int64_t now, handshake_by, reconnect_at, down_since, ping_at, ping_ns;
    unsigned failures;
    uint64_t random;
    unsigned char *in;
    size_t in_capacity, in_length;
    uint64_t next_id;        /* of requests on this connection */
    struct welcome limits, offered;
    bool renewed;

    struct outgoing out;
    struct outgoing copies;  /* of what was written into the ring: its memory ends with the session */
    struct flight flight;
    uint64_t submitted, batches;
    struct session_producer producer;
    struct stall stall;
    struct failure full;     /* of the stall */
    struct call *calls;
    struct learned *learned;
    wal_read *reads;
    struct stream_ref *rows[STREAM_ROWS], *newest;
    struct producer_ref *producers;

    struct pending **pendings; /* by the low bits of the ticket */
    size_t pending_count, pending_capacity, free_count;
    uint32_t *free_pendings;
    struct pending kept;       /* head of the list of submissions without callback */
    size_t untaken;            /* answered and kept */
    struct pending *ready, *ready_last; /* answered, to be called */
    size_t ready_count;
    wal_placed *placed;        /* of the newest result that was given out */
    struct stream_ref **scratch; /* of the batch that is being checked */
    bool calling;

    int event, signal, timer;  /* epoll, eventfd, timerfd; -1: not asked for */
    bool in_epoll, signalled;
    uint32_t interest;
    int64_t timer_at;
    bool wanted;               /* -EAGAIN was returned; with these it may go on */
    size_t wanted_size, wanted_slots;
};

static int remember(wal *w, const struct failure *f)
{
    w->last = *f;
    return f->code;
}

#define FAIL(w, code, stream, ...) fail_with(&(w)->last, code, stream, __VA_ARGS__)

static void saw_durable(wal *w, uint64_t position)
{
    if (position > atomic_load_explicit(&w->durable, memory_order_relaxed))
        atomic_store_explicit(&w->durable, position, memory_order_release);
}

/* ---- The door: a Unix socket ------------------------------------------------- */

/* door_open connects without waiting: 0 or -errno. */
static int door_open(wal *w)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&w->address, sizeof w->address) < 0) {
        int error = errno;
        close(fd);
        return -error;
    }
    w->socket = fd;
    return 0;
}

static void door_close(wal *w)
{
    if (w->socket >= 0)
        close(w->socket); /* it leaves the epoll set by itself */
    w->socket = -1;
    w->in_epoll = false;
}

/* door_send gives the door what it takes now; the bytes taken, or -errno. */
static ssize_t door_send(wal *w, struct iovec *segments, size_t count)
{
    struct msghdr message = { .msg_iov = segments, .msg_iovlen = count };
    for (;;) {
        ssize_t n = sendmsg(w->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0)
            return n;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        if (errno != EINTR)
            return -errno;
    }
}

/* keep_files takes the descriptors of a message: those that are awaited are kept. */
static void keep_files(wal *w, struct msghdr *message)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (w->state == OPENING_RING && w->file_count < FILES)
                w->files[w->file_count++] = fd;
            else
                close(fd);
        }
    }
}

static void close_files(wal *w)
{
    while (w->file_count > 0)
        close(w->files[--w->file_count]);
}

/* door_receive takes what there is: the bytes, -EAGAIN if there is nothing, -EPIPE at
 * the end, or -errno. */
static ssize_t door_receive(wal *w, unsigned char *to, size_t capacity)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * FILES * sizeof(int))];
    } control;
    struct iovec segment = { to, capacity };
    for (;;) {
        struct msghdr message = { .msg_iov = &segment, .msg_iovlen = 1, .msg_control = &control,
                                  .msg_controllen = sizeof control };
        ssize_t n = recvmsg(w->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n >= 0)
            keep_files(w, &message);
        if (n > 0)
            return n;
        if (n == 0)
            return -EPIPE;
        if (errno == EWOULDBLOCK)
            return -EAGAIN;
        if (errno != EINTR)
            return -errno;
    }
}

/* ---- The door for appends: a ring in shared memory ------------------------------ */

static _Atomic uint64_t *word64(unsigned char *area, size_t at) { return (_Atomic uint64_t *)(void *)(area + at); }
static _Atomic uint32_t *word32(unsigned char *area, size_t at) { return (_Atomic uint32_t *)(void *)(area + at); }

static void ring_close(struct ring *d)
{
    if (d == NULL)
        return;
    if (d->submission != NULL)
        munmap(d->submission, AREA_HEAD_BYTES + d->size);
    if (d->completion != NULL)
        munmap(d->completion, COMPLETION_BYTES);
    if (d->bell >= 0)
        close(d->bell);
    free(d);
}

/* map_area maps a file that must have exactly this size, for ever, and this head. */
static unsigned char *map_area(int fd, size_t data_bytes, int protection, uint64_t magic)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    size_t size = AREA_HEAD_BYTES + data_bytes;
    if (fstat(fd, &st) < 0 || st.st_size != (off_t)size || seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return NULL;
    unsigned char *area = mmap(NULL, size, protection, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (area == MAP_FAILED)
        return NULL;
    if (load64(area) == magic && load16(area + 8) == LAYOUT && load32(area + 12) == AREA_HEAD_BYTES &&
        load64(area + 16) == data_bytes)
        return area;
    munmap(area, size);
    return NULL;
}

/* ring_open maps what the sidecar handed over; NULL if it is not what the protocol says,
 * or cannot be mapped. It takes the descriptors. */
static struct ring *ring_open(wal *w, const struct shm_info *info)
{
    struct ring *d = w->file_count == FILES ? calloc(1, sizeof *d) : NULL;
    uint64_t size = info->ring_bytes;
    if (d == NULL || info->layout != LAYOUT || size < MIN_RING_BYTES || size > MAX_RING_BYTES ||
        (size & (size - 1)) != 0 || info->completion_bytes != COMPLETION_BYTES || info->max_message_bytes > size / 4 ||
        info->max_requests == 0 || info->max_requests > ACKS) {
        close_files(w);
        free(d);
        return NULL;
    }
    d->bell = w->files[2];
    d->size = (size_t)size;
    d->max_message = info->max_message_bytes;
    d->max_requests = info->max_requests;
    d->next_id = FIRST_RING_REQUEST;
    d->submission = map_area(w->files[0], d->size, PROT_READ | PROT_WRITE, SUBMISSION_MAGIC);
    d->completion = map_area(w->files[1], COMPLETION_BYTES - AREA_HEAD_BYTES, PROT_READ, COMPLETION_MAGIC);
    close(w->files[0]);
    close(w->files[1]);
    w->file_count = 0;
    if (d->submission == NULL || d->completion == NULL) {
        ring_close(d);
        return NULL;
    }
    return d;
}

/* ring_pad is how many bytes are left unused before a message of n bytes. */
static size_t ring_pad(const struct ring *d, size_t n)
{
    size_t left = d->size - (size_t)(d->position & (d->size - 1));
    return left < n ? left : 0;
}

static bool ring_fits(const struct ring *d, size_t n)
{
    return n <= d->max_message && (size_t)(d->position - d->free) + ring_pad(d, n) + n <= d->size;
}

/* ring_put writes a message that fits, and returns the position behind it. */
static uint64_t ring_put(struct ring *d, const unsigned char *message, size_t n)
{
    unsigned char *ring = d->submission + AREA_HEAD_BYTES;
    size_t pad = ring_pad(d, n);
    if (pad > 0) { /* it can be 8 bytes long: the rest of its header is not written */
        store(ring + (d->position & (d->size - 1)), pad | (uint64_t)PAD << 32, 8);
        d->position += pad;
    }
    memcpy(ring + (d->position & (d->size - 1)), message, n);
    return d->position += n;
}

/* ring_publish shows the sidecar what was written, and wakes it if it sleeps: once per
 * sleep. The store and the load are sequentially consistent: either the sidecar's last
 * look sees the tail, or this load sees its sleep. */
static void ring_publish(struct ring *d)
{
    atomic_store(word64(d->submission, SUBMISSION_TAIL), d->position);
    uint32_t sleep = atomic_load(word32(d->completion, COMPLETION_SLEEP));
    if ((sleep & 1) == 0 || sleep == d->kicked)
        return;
    d->kicked = sleep;
    uint64_t one = 1;
    while (write(d->bell, &one, sizeof one) < 0 && errno == EINTR)
        continue; /* a full counter has been rung already */
}

static bool ring_any(const struct ring *d) { return atomic_load(word64(d->completion, COMPLETION_ACKS)) != d->taken; }

/* ring_free gives up everything below position: its outcome is known here. */
static void ring_free(struct ring *d, uint64_t position)
{
    d->free = max_u64(d->free, min_u64(position, d->position));
}

static bool ring_poll(const struct ring *d, int64_t ns)
{
    for (int64_t until = clock_ns() + ns;;) {
        for (int i = 0; i < 32; i++)
            if (ring_any(d))
                return true;
        if (clock_ns() >= until)
            return false;
    }
}

/* shares_processor says whether this process and the one at the other end of the socket
 * can only run in turns. A sidecar that cannot be seen from here may run anywhere. */
static bool shares_processor(int socket)
{
    struct ucred peer;
    socklen_t n = sizeof peer;
    cpu_set_t own, other;
    if (sched_getaffinity(0, sizeof own, &own) < 0)
        return sysconf(_SC_NPROCESSORS_ONLN) <= 1;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0 || peer.pid == 0 ||
        sched_getaffinity(peer.pid, sizeof other, &other) < 0)
        return CPU_COUNT(&own) <= 1 && sysconf(_SC_NPROCESSORS_ONLN) <= 1;
    CPU_OR(&own, &own, &other);
    return CPU_COUNT(&own) <= 1;
}

/* ring_look looks for acks without sleeping, as long as that pays. */
static bool ring_look(struct ring *d, int waiting, bool alone)
{
    if (ring_any(d))
        return true;
    if (waiting == WAL_WAIT_BLOCK || alone)
        return false;
    if (waiting == WAL_WAIT_SPIN)
        return ring_poll(d, SPIN_NS);
    d->waits++;
    if (d->budget == 0) {
        if (d->waits % PROBE_EVERY != 0)
            return false;
        d->budget = ADAPTIVE_NS; /* and less in the waits that follow, so that two sides meet */
    }
    if (ring_poll(d, d->budget)) {
        d->budget = ADAPTIVE_NS;
        return true;
    }
    d->budget = d->budget > 2000 ? d->budget / 2 : 0;
    return false;
}

/* ring_sleep sleeps until there are acks, for at most ns. */
static void ring_sleep(struct ring *d, int64_t ns)
{
    _Atomic uint32_t *wake = word32(d->completion, COMPLETION_WAKE);
    _Atomic uint32_t *wanted = word32(d->submission, SUBMISSION_ACK_WANTED);
    struct timespec t = { .tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND) };
    uint32_t was = atomic_load(wake);
    atomic_store(wanted, ++d->slept);
    if (!ring_any(d))
        syscall(SYS_futex, (void *)wake, FUTEX_WAIT, was, &t, NULL, 0); /* shared between processes: not private */
    atomic_store(wanted, ++d->slept);
}

/* ---- Memory of outgoing messages --------------------------------------------- */

static void recycle_chunk(struct chunk *c)
{
    struct outgoing *o = c->home;
    if (c->queued || c->live > 0)
        return;
    if (c->capacity != CHUNK_BYTES || o->spares >= FREE_CHUNKS) {
        free(c->buf);
        free(c);
        return;
    }
    c->length = c->sent = 0;
    c->next = o->spare;
    o->spare = c;
    o->spares++;
}

static void release_chunk(struct chunk *c)
{
    c->live--;
    recycle_chunk(c);
}

/* leave_queue takes the first chunk out. */
static void leave_queue(struct outgoing *o)
{
    struct chunk *c = o->first;
    o->first = c->next;
    if (o->first == NULL)
        o->last = NULL;
    c->queued = false;
    recycle_chunk(c);
}

static struct chunk *new_chunk(struct outgoing *o, size_t n)
{
    if (n <= CHUNK_BYTES && o->spare != NULL) {
        struct chunk *c = o->spare;
        o->spare = c->next;
        o->spares--;
        return c;
    }
    struct chunk *c = calloc(1, sizeof *c);
    if (c == NULL)
        return NULL;
    c->capacity = n > CHUNK_BYTES ? n : CHUNK_BYTES;
    c->buf = malloc(c->capacity);
    if (c->buf == NULL) {
        free(c);
        return NULL;
    }
    return c;
}

/* reserve returns the chunk with room for n bytes at its end; NULL without memory. */
static struct chunk *reserve(struct outgoing *o, size_t n)
{
    struct chunk *c = o->last;
    if (c != NULL) {
        if (c->live == 0 && c->sent == c->length)
            c->sent = c->length = 0;
        if (n <= c->capacity - c->length)
            return c;
    }
    c = new_chunk(o, n);
    if (c == NULL)
        return NULL;
    c->next = NULL;
    c->home = o;
    c->queued = true;
    if (o->last != NULL)
        o->last->next = c;
    else
        o->first = c;
    o->last = c;
    return c;
}

/* restart forgets what is queued; messages keep their chunks until released. */
static void restart(struct outgoing *o)
{
    while (o->first != NULL) {
        o->first->sent = o->first->length;
        leave_queue(o);
    }
    o->unsent = 0;
}

/* claim_message takes the n bytes that were written at the end of a chunk for a message
 * that may have to be sent again. */
static void claim_message(struct outgoing *o, struct chunk *c, size_t n)
{
    c->length += n;
    c->live++;
    o->unsent += n;
}

/* claim_copy does it for a copy of what is in the ring: nothing else sends it. */
static void claim_copy(struct outgoing *copies, struct chunk *c, size_t n)
{
    c->length += n;
    c->sent = c->length;
    c->live++;
    while (copies->first != copies->last)
        leave_queue(copies);
}

/* put_message queues a message that need not be sent again. */
static int put_message(wal *w, const unsigned char *message, size_t n)
{
    struct chunk *c = reserve(&w->out, n);
    if (c == NULL)
        return -ENOMEM;
    memcpy(c->buf + c->length, message, n);
    c->length += n;
    w->out.unsent += n;
    return 0;
}

static size_t flight_length(const struct flight *f) { return (size_t)(f->tail - f->head); }
static struct request *flight_at(struct flight *f, uint64_t number) { return &f->ring[number & f->mask]; }
static bool answered(const struct request *r) { return r->pending == NULL || r->held; }

/* label names the stream for errors; a batch over several has none. */
static const char *label(const struct request *r)
{
    if (r->one.stream != NULL)
        return r->one.stream->name;
    return r->target_count == 1 ? r->targets[0].stream->name : "";
}

/* ---- Streams and producers that the client knows ------------------------------ */

static uint64_t hash_name(const char *name)
{
    struct xxhash x;
    xx_begin(&x);
    xx_add(&x, name, strlen(name));
    return xx_sum(&x);
}

static struct stream_ref *find_stream(wal *w, const char *name)
{
    if (w->newest != NULL && strcmp(w->newest->name, name) == 0)
        return w->newest;
    uint64_t hash = hash_name(name);
    for (struct stream_ref *s = w->rows[hash % STREAM_ROWS]; s != NULL; s = s->next)
        if (s->hash == hash && strcmp(s->name, name) == 0)
            return w->newest = s;
    return NULL;
}

static bool learn_stream_id(wal *w, const char *name, uint64_t id)
{
    if (find_stream(w, name) != NULL)
        return true;
    struct stream_ref *s = calloc(1, sizeof *s);
    if (s == NULL)
        return false;
    copy_text(s->name, sizeof s->name, name, strlen(name));
    s->hash = hash_name(name);
    struct stream_ref **row = &w->rows[s->hash % STREAM_ROWS];
    s->id = id;
    s->known = true;
    s->next = *row;
    *row = s;
    return true;
}

static void free_stream_if_unused(struct stream_ref *s)
{
    if (!s->known && s->uses == 0)
        free(s);
}

/* forget_stream makes the next append ask for the name again. */
static void forget_stream(wal *w, struct stream_ref *s)
{
    if (!s->known)
        return;
    struct stream_ref **at = &w->rows[s->hash % STREAM_ROWS];
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->known = false;
    if (w->newest == s)
        w->newest = NULL;
    free_stream_if_unused(s);
}

static struct producer_ref *find_producer(wal *w, const char *name)
{
    for (struct producer_ref *p = w->producers; p != NULL; p = p->next)
        if (strcmp(p->name, name) == 0)
            return p;
    return NULL;
}

/* learn_producer notes the id of a named producer; false without memory. */
static bool learn_producer(wal *w, const char *name, uint64_t id)
{
    struct producer_ref *p = find_producer(w, name);
    if (p == NULL) {
        p = calloc(1, sizeof *p);
        if (p == NULL)
            return false;
        copy_text(p->name, sizeof p->name, name, strlen(name));
        p->next = w->producers;
        w->producers = p;
    }
    p->id = id;
    return true;
}

/* forget_producers forgets one named producer, or all. */
static void forget_producers(wal *w, const char *name)
{
    for (struct producer_ref **at = &w->producers; *at != NULL;) {
        struct producer_ref *p = *at;
        if (name != NULL && strcmp(p->name, name) != 0) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        free(p);
    }
}

/* ---- Answers to submissions ---------------------------------------------------- */

enum { TICKET_BITS = 20 }; /* of the place in pendings; WAL_MAX_RESULTS and the flight fit */

static struct pending *new_pending(wal *w)
{
    if (w->free_count == 0) {
        if (w->pending_count == w->pending_capacity) {
            size_t capacity = w->pending_capacity > 0 ? 2 * w->pending_capacity : 64;
            struct pending **pendings = realloc(w->pendings, capacity * sizeof *pendings);
            if (pendings == NULL)
                return NULL;
            w->pendings = pendings;
            uint32_t *frees = realloc(w->free_pendings, capacity * sizeof *frees);
            if (frees == NULL)
                return NULL;
            w->free_pendings = frees;
            w->pending_capacity = capacity;
        }
        struct pending *p = calloc(1, sizeof *p);
        if (p == NULL)
            return NULL;
        p->ticket = w->pending_count;
        w->pendings[w->pending_count] = p;
        w->free_pendings[w->free_count++] = (uint32_t)w->pending_count++;
    }
    struct pending *p = w->pendings[w->free_pendings[--w->free_count]];
    p->ticket += (wal_ticket)1 << TICKET_BITS; /* so that a ticket that is spent is known as such */
    return p;
}

static void unkeep(struct pending *p)
{
    if (p->previous == NULL)
        return;
    p->previous->next = p->next;
    p->next->previous = p->previous;
    p->previous = p->next = NULL;
}

static void free_pending(wal *w, struct pending *p)
{
    if (p->done == NULL && p->answered && !p->abandoned)
        w->untaken--;
    if (p->done == NULL)
        unkeep(p);
    free(p->placed);
    free(p->failure);
    wal_ticket ticket = p->ticket;
    *p = (struct pending){ .ticket = ticket + ((wal_ticket)1 << TICKET_BITS) };
    w->free_pendings[w->free_count++] = (uint32_t)(ticket & (((wal_ticket)1 << TICKET_BITS) - 1));
}

/* take_result gives the answer out; what it points to stays until the next one. */
static int take_result(wal *w, struct pending *p, wal_result *result)
{
    int error = p->result.error;
    if (error != 0) {
        if (p->failure != NULL)
            remember(w, p->failure);
        else
            FAIL(w, error, "", "%s", wal_strerror(error));
    }
    free(w->placed);
    w->placed = p->placed;
    p->placed = NULL;
    if (result != NULL) {
        *result = p->result;
        result->placed = w->placed;
    }
    free_pending(w, p);
    return error;
}

static void free_targets(struct request *r)
{
    if (r->one.stream != NULL) {
        r->one.stream->uses--;
        free_stream_if_unused(r->one.stream);
        r->one.stream = NULL;
    }
    for (size_t i = 0; i < r->target_count; i++) {
        r->targets[i].stream->uses--;
        free_stream_if_unused(r->targets[i].stream);
    }
    free(r->targets);
    r->targets = NULL;
    r->target_count = 0;
}

/* settle_request gives the final answer to a request. */
static void settle_request(wal *w, struct request *r, const wal_result *result, wal_placed *placed,
                           const struct failure *f)
{
    struct pending *p = r->pending;
    r->pending = NULL;
    release_chunk(r->chunk);
    r->chunk = NULL;
    free_targets(r);
    if (result != NULL)
        p->result = *result;
    p->placed = placed;
    if (f != NULL) {
        p->result.error = f->code;
        p->failure = malloc(sizeof *f);
        if (p->failure != NULL)
            *p->failure = *f;
    }
    p->answered = true;
    if (p->done != NULL) {
        p->next = NULL;
        if (w->ready_last != NULL)
            w->ready_last->next = p;
        else
            w->ready = p;
        w->ready_last = p;
        w->ready_count++;
        return;
    }
    if (p->abandoned)
        free_pending(w, p);
    else
        w->untaken++;
}

/* refuse gives a request an error of the client's own. */
static void refuse(wal *w, struct request *r, int code, bool outcome_unknown, const char *message)
{
    struct failure f;
    fail_with(&f, code, label(r), "append: %s", message);
    f.outcome_unknown = outcome_unknown;
    settle_request(w, r, NULL, NULL, &f);
}

static void advance(struct flight *f)
{
    while (f->next < f->tail && answered(flight_at(f, f->next)))
        f->next++;
}

/* used_up notes that the log has used up the sequence of r. */
static void used_up(wal *w, const struct request *r)
{
    w->producer.used_up = max_u64(w->producer.used_up, r->sequence);
}

static void succeed(wal *w, struct request *r, const wal_result *result, wal_placed *placed)
{
    used_up(w, r);
    w->stall.retries = 0;
    settle_request(w, r, result, placed, NULL);
    advance(&w->flight);
}

static void begin_stall(wal *w) { w->stall.active = true; }

static void end_stall(wal *w)
{
    w->stall = (struct stall){ .resume_at = NEVER, .retries = w->stall.retries };
}

/* hold keeps a request that the log is known not to have, to be sent again. */
static void hold(wal *w, struct request *r)
{
    begin_stall(w);
    r->held = r->absent = true;
    r->sent = false;
}

/* behind_full is the failure of what was to follow a record for which the log was full. */
static void behind_full(const wal *w, const char *stream, struct failure *f)
{
    fail_with(f, -WAL_LOG_FULL, w->full.stream[0] != 0 ? w->full.stream : stream,
              "append: not appended: the log was full for a record before it");
    f->has_offset = w->full.has_offset;
    f->offset = w->full.offset;
}

/* refused_behind decides about a request that was, or will be, refused because of an
 * earlier one. */
static void refused_behind(wal *w, struct request *r)
{
    if (!w->stall.full) {
        hold(w, r);
        return;
    }
    struct failure f;
    behind_full(w, label(r), &f);
    settle_request(w, r, NULL, NULL, &f);
}

/* passes tells the refusals that have to do with the sidecar, not with the request:
 * what was refused so is sent again, on this connection or the next one. */
static bool passes(int code)
{
    switch (-code) {
    case WAL_DRAINING: case WAL_NOT_READY: case WAL_BUSY: case WAL_OUT_OF_MEMORY:
    case WAL_FENCED: case WAL_LOG_FAILED: case WAL_OUTCOME_UNKNOWN:
        return true;
    }
    return false;
}

/* forget drops what the client knows of a stream or producer that is gone. */
static void forget(wal *w, struct request *r, int code)
{
    bool gone = code == -WAL_DELETED || code == -WAL_NOT_FOUND;
    if (gone && r->one.stream != NULL)
        forget_stream(w, r->one.stream);
    for (size_t i = 0; gone && i < r->target_count; i++)
        forget_stream(w, r->targets[i].stream);
    if (r->sequence == 0 && (gone || code == -WAL_PRODUCER_EXPIRED))
        forget_producers(w, NULL);
}

/* session_refused decides about an append under the session's producer whose
 * sequence was not used up. */
static void session_refused(wal *w, struct request *r, struct failure *f)
{
    if (f->code == -WAL_OUT_OF_SEQUENCE && w->stall.active) {
        refused_behind(w, r);
    } else if (f->code == -WAL_OUT_OF_SEQUENCE) {
        /* The log is behind what it had answered, or another connection used the producer. */
        w->producer.renew = true;
        hold(w, r);
    } else if (f->code == -WAL_PRODUCER_EXPIRED) {
        w->producer.renew = true;
        f->outcome_unknown = r->sent;
        if (r->sent) {
            begin_stall(w);
            w->stall.doubt = true;
        }
        if (r->sent || w->stall.doubt)
            settle_request(w, r, NULL, NULL, f);
        else
            hold(w, r);
    } else {
        begin_stall(w);
        w->stall.certain = !f->outcome_unknown;
        w->producer.renew = w->producer.renew || f->outcome_unknown;
        if (f->code == -WAL_LOG_FULL) {
            w->stall.full = true;
            w->full = *f;
        }
        settle_request(w, r, NULL, NULL, f);
    }
}

/* refused decides what becomes of an append that the sidecar refused. */
static void refused(wal *w, struct request *r, struct failure *f)
{
    bool session = r->sequence != 0;
    if (f->stream[0] == 0)
        copy_text(f->stream, sizeof f->stream, label(r), strlen(label(r)));
    forget(w, r, f->code);
    if (f->logged || (f->code == -WAL_SEQUENCE_EXPIRED && session)) {
        used_up(w, r);
        settle_request(w, r, NULL, NULL, f);
    } else if (session && w->stall.certain) {
        refused_behind(w, r); /* for whatever reason now */
    } else if (passes(f->code) || (f->code == -WAL_LOG_FULL && w->wait_while_full)) {
        /* It says nothing of what became of the request on an earlier connection. */
        bool sent = f->code != -WAL_LOG_FULL && (r->sent || f->outcome_unknown);
        hold(w, r);
        r->sent = sent;
        r->absent = !sent;
    } else if (session) {
        session_refused(w, r, f);
    } else {
        settle_request(w, r, NULL, NULL, f);
    }
}

static void end_client(wal *w, const struct failure *why);

/* append_id returns the id of the next append on the present connection. */
static uint64_t append_id(wal *w)
{
    if (w->state != UP)
        return 0;
    return w->ring != NULL ? w->ring->next_id++ : w->next_id++;
}

static void out_of_memory(wal *w)
{
    struct failure f;
    fail_with(&f, -ENOMEM, "", "no memory for what is in flight");
    end_client(w, &f);
}

/* keep_result notes that an answered request leaves the flight before acked has passed it. */
static void keep_result(struct session_producer *p, const struct request *r)
{
    if (r->sequence >= p->acked && r->sequence <= p->used_up) {
        p->kept += r->slots;
        p->kept_up_to = max_u64(p->kept_up_to, r->sequence);
    }
}

/* rebuild puts every unanswered request anew into the outgoing memory, in order, for
 * the present connection if there is one. Requests that may have reached the log keep
 * their sequences; the others get those that follow. */
static bool rebuild(wal *w)
{
    struct flight *f = &w->flight;
    uint64_t keep = f->head;
    bool complete = true;
    struct ring *d = w->state == UP ? w->ring : NULL;
    if (d != NULL)
        ring_free(d, d->position); /* all of it was answered */
    f->bytes = f->slots = 0;
    w->producer.next = w->producer.used_up + 1;
    for (uint64_t number = f->head; number < f->tail; number++) {
        struct request r = *flight_at(f, number);
        if (r.pending == NULL) {
            keep_result(&w->producer, &r);
            continue;
        }
        if (r.sequence != 0) {
            if (!r.sent) /* else it is bound to its sequence */
                r.sequence = w->producer.next;
            w->producer.next = max_u64(w->producer.next, r.sequence + 1);
        }
        r.held = false;
        r.id = append_id(w);
        struct chunk *c = reserve(d != NULL ? &w->copies : &w->out, r.size);
        if (c != NULL) {
            size_t at = c->length;
            unsigned char *message = c->buf + at;
            memcpy(message, r.chunk->buf + r.at, r.size);
            store(message + AT_REQUEST, r.id, 8);
            if (r.sequence != 0) {
                store(message + AT_PRODUCER, w->producer.id, 8);
                store(message + AT_SEQUENCE, r.sequence, 8);
                store(message + AT_ACKED, w->producer.acked, 8);
            }
            release_chunk(r.chunk);
            r.chunk = c;
            r.at = at;
            r.end = 0;
            if (d != NULL) {
                r.end = ring_put(d, message, r.size);
                claim_copy(&w->copies, c, r.size);
            } else {
                claim_message(&w->out, c, r.size);
            }
        } else {
            complete = false;
        }
        f->bytes += r.size;
        f->slots += r.slots;
        *flight_at(f, keep++) = r;
    }
    f->tail = keep;
    f->next = f->head;
    if (d != NULL)
        ring_publish(d);
    end_stall(w);
    return complete;
}

static int64_t backoff(unsigned failures, int64_t first, int64_t longest)
{
    int64_t pause = failures < 16 ? first << failures : longest;
    return pause < longest ? pause : longest;
}

/* resume is called once everything in flight has been answered during a stall. */
static void resume(wal *w)
{
    if (w->producer.renew) {
        fail_with(&w->lost, -WAL_DISCONNECTED, "", "the client goes on under a new session producer");
        w->drop = true;
        return;
    }
    if (flight_length(&w->flight) == 0) {
        rebuild(w); /* nothing to copy: it cannot fail */
        return;
    }
    if (w->stall.resume_at == NEVER)
        w->stall.resume_at = w->now + backoff(w->stall.retries++, RETRY_FIRST_NS, RETRY_LONGEST_NS);
}

/* settle follows up on answers: it frees what the oldest requests held and ends stalls. */
static void settle(wal *w)
{
    struct flight *f = &w->flight;
    while (f->head < f->tail && flight_at(f, f->head)->pending == NULL) {
        struct request *r = flight_at(f, f->head);
        /* What is dropped is answered, and so is everything before it. */
        w->producer.acked = max_u64(w->producer.acked, min_u64(r->sequence, w->producer.used_up) + 1);
        f->bytes -= r->size;
        f->slots -= r->slots;
        if (w->ring != NULL)
            ring_free(w->ring, r->end);
        *r = (struct request){ 0 };
        f->head++;
        f->next = max_u64(f->next, f->head);
    }
    if (flight_length(f) == 0)
        w->producer.acked = w->producer.used_up + 1;
    if (w->producer.acked > w->producer.kept_up_to)
        w->producer.kept = 0;
    if (w->stall.active && f->next == f->tail && w->state == UP)
        resume(w);
}

/* awaited returns the unanswered request with this id. Answers come in the order of
 * the requests, but for refusals that do not get as far as the log. */
static struct request *awaited(wal *w, uint64_t id)
{
    struct flight *f = &w->flight;
    uint64_t low = f->next, high = f->tail;
    if (low < high && flight_at(f, low)->id != id)
        while (low < high) {
            uint64_t middle = low + (high - low) / 2;
            if (flight_at(f, middle)->id < id)
                low = middle + 1;
            else
                high = middle;
        }
    if (low >= f->tail)
        return NULL;
    struct request *r = flight_at(f, low);
    return r->id == id && id != 0 && !answered(r) ? r : NULL;
}

/* ---- What the sidecar says ------------------------------------------------------ */

/* The handlers return whether the connection goes on; if not, w->lost says why. */
static bool broken(wal *w, const char *what)
{
    fail_with(&w->lost, -WAL_DISCONNECTED, "", "the sidecar sent what is not the protocol: %s", what);
    return false;
}

/* acked gives the requests of an extent their results. */
static bool acked(wal *w, const struct extent *x)
{
    for (uint32_t i = 0; i < x->requests; i++) {
        struct request *r = awaited(w, x->request + i);
        if (r == NULL)
            return broken(w, "an ack for a request that is not awaited");
        wal_result result = { .offset = x->offset + (uint64_t)i * x->records,
                              .position = x->position + (uint64_t)i * x->step };
        wal_placed *placed = NULL;
        if (r->target_count > 0) {
            placed = malloc(sizeof *placed);
            if (placed != NULL) {
                *placed = (wal_placed){ x->stream, result.offset, x->records, r->targets[0].entry };
                result.placed_count = 1;
            }
        }
        succeed(w, r, &result, placed);
    }
    saw_durable(w, x->position + (uint64_t)(x->requests - 1) * x->step);
    return true;
}

static bool handle_ack(wal *w, const struct header *h, struct scan s)
{
    uint32_t count;
    if (!decode_ack(h, &s, &count))
        return broken(w, "append_ack");
    for (uint32_t e = 0; e < count; e++) {
        struct extent x;
        if (!decode_extent(&s, &x))
            return broken(w, "an extent of append_ack");
        if (!acked(w, &x))
            return false;
    }
    settle(w);
    return true;
}

/* take_acks takes the acks that are in shared memory; whether there were any. What is
 * wrong with them ends the connection soon. */
static bool take_acks(wal *w)
{
    struct ring *d = w->ring;
    if (d == NULL)
        return false;
    uint64_t acks = atomic_load(word64(d->completion, COMPLETION_ACKS));
    if (acks == d->taken)
        return false;
    bool well = acks - d->taken <= ACKS || broken(w, "more acks than there can be");
    for (; well && d->taken != acks; d->taken++) {
        struct scan s = { .b = d->completion + AREA_HEAD_BYTES + d->taken % ACKS * ACK_BYTES, .n = ACK_BYTES };
        struct extent x;
        x.request = get64(&s);
        x.stream = get64(&s);
        x.offset = get64(&s);
        x.position = get64(&s);
        x.requests = get32(&s);
        x.records = get32(&s);
        x.step = get32(&s);
        well = x.requests > 0 && x.records > 0 ? acked(w, &x) : broken(w, "an ack in shared memory");
    }
    settle(w);
    w->drop = w->drop || !well;
    return true;
}

/* place_result decodes where the records of a batch lie; NULL: malformed, or no memory. */
static wal_placed *place_result(const struct request *r, struct scan *s, uint32_t count)
{
    wal_placed *placed = malloc((count > 0 ? count : 1) * sizeof *placed);
    for (uint32_t i = 0; placed != NULL && i < count; i++) {
        bool found = decode_placed(s, &placed[i]);
        for (size_t t = 0, start = i; found && t <= r->target_count; t++) {
            if (t == r->target_count) {
                found = false;
                break;
            }
            /* They come in the order of the targets. */
            const struct target *target = &r->targets[(start + t) % r->target_count];
            if (target->stream->id == placed[i].stream_id) {
                placed[i].entry = target->entry;
                break;
            }
        }
        if (!found) {
            free(placed);
            return NULL;
        }
    }
    return placed;
}

static bool handle_result(wal *w, const struct header *h, struct scan s)
{
    struct append_result m;
    if (!decode_result(h, &s, &m))
        return broken(w, "append_result");
    struct request *r = awaited(w, h->request);
    if (r == NULL)
        return broken(w, "append_result for a request that is not awaited");
    if (r->sequence == 0 && m.duplicate && r->absent) {
        refuse(w, r, -WAL_OUT_OF_SEQUENCE, false,
               "not appended: while the log was full for it, a later sequence of the producer was accepted");
        advance(&w->flight);
        settle(w);
        return true;
    }
    wal_result result = { 0 };
    wal_placed *placed = NULL, first = { 0 };
    struct scan peek = s;
    if (r->sequence == 0 && m.duplicate) {
        result.duplicate = 1;
        result.last_sequence = m.last_sequence;
    } else {
        result.position = m.position;
        if (m.placed > 0 && !decode_placed(&peek, &first))
            return broken(w, "append_result");
        result.offset = first.first;
        if (r->target_count > 0) {
            if (m.placed > r->target_count || (placed = place_result(r, &s, m.placed)) == NULL)
                return broken(w, "append_result does not fit its batch");
            result.placed_count = m.placed;
        }
    }
    succeed(w, r, &result, placed);
    saw_durable(w, m.position);
    settle(w);
    return true;
}

/* take_call takes the call with this id out of the list. */
static struct call *take_call(wal *w, uint64_t id)
{
    for (struct call **at = &w->calls; id != 0 && *at != NULL; at = &(*at)->next)
        if ((*at)->id == id) {
            struct call *k = *at;
            *at = k->next;
            k->next = NULL;
            return k;
        }
    return NULL;
}

static void keep_learned(wal *w, const struct call *k, const struct failure *f)
{
    size_t count = 0;
    for (struct learned **at = &w->learned; *at != NULL; at = &(*at)->next)
        if (++count >= LEARNED_ERRORS) { /* drop the oldest */
            free(*at);
            *at = NULL;
            break;
        }
    struct learned *l = calloc(1, sizeof *l);
    if (l == NULL)
        return; /* it will be asked again */
    l->kind = k->kind;
    l->create = k->create;
    memcpy(l->name, k->name, sizeof l->name);
    l->failure = *f;
    l->next = w->learned;
    w->learned = l;
}

/* fail_call ends a call, taken out of the list, without an answer. */
static void fail_call(wal *w, struct call *k, const struct failure *f)
{
    if (k->kind == ASKED && !k->abandoned) {
        k->failure = *f;
        k->answered = true;
        return;
    }
    if (k->kind == LEARN_STREAM || k->kind == LEARN_PRODUCER || k->kind == LEARN_SESSION)
        keep_learned(w, k, f);
    free(k);
}

/* learn takes the answer to what an append had to know. */
static bool learn(wal *w, struct call *k, const struct header *h, struct scan s)
{
    if (k->kind == LEARN_STREAM) {
        wal_stream_info info;
        if (!decode_stream_info(h, s, &info))
            return broken(w, "stream_info");
        if (!learn_stream_id(w, k->name, info.id))
            out_of_memory(w);
        return true;
    }
    struct producer_info info;
    if (!decode_producer_info(h, s, &info) || info.id == 0)
        return broken(w, "producer_info");
    if (k->kind == LEARN_SESSION) {
        w->producer = (struct session_producer){ .id = info.id, .next = 1, .window = info.window };
        return true;
    }
    if (!learn_producer(w, k->name, info.id))
        out_of_memory(w);
    return true;
}

static bool handle_answer(wal *w, const struct header *h, struct scan s)
{
    struct call *k = take_call(w, h->request);
    if (k == NULL)
        return broken(w, "an answer to a request that did not ask for it");
    if (h->type != k->want) {
        struct failure f;
        fail_with(&f, -WAL_INTERNAL, k->name, "the sidecar's answer is not of the kind that was asked for");
        fail_call(w, k, &f);
        return true;
    }
    if (k->kind != ASKED || k->abandoned) {
        uint64_t durable;
        bool well = k->kind == ASKED || k->kind == SIGN_OF_LIFE || learn(w, k, h, s);
        if (k->kind == SIGN_OF_LIFE && decode_numbers(h, s, &durable, 1))
            saw_durable(w, durable);
        free(k);
        return well;
    }
    k->header = *h;
    k->body = malloc(s.n > 0 ? s.n : 1);
    if (k->body != NULL)
        memcpy(k->body, s.b, s.n);
    else
        fail_with(&k->failure, -ENOMEM, "", "no memory for the answer");
    k->answered = true;
    return true;
}

static wal_read *find_read(wal *w, uint64_t id)
{
    for (wal_read *r = w->reads; id != 0 && r != NULL; r = r->next)
        if (r->id == id && r->state == READ_OPEN)
            return r;
    return NULL;
}

static void free_read(wal_read *r);

/* stop_read ends what a read gets on this connection. */
static void stop_read(wal_read *r, enum read_state state, const struct failure *f)
{
    r->id = 0;
    if (r->closed) {
        free_read(r);
        return;
    }
    r->state = state;
    if (f != NULL)
        r->failure = *f;
}

static bool handle_error(wal *w, const struct header *h, struct scan s)
{
    struct failure f;
    uint64_t stream;
    if (!decode_error(h, s, &f, &stream))
        return broken(w, "error");
    struct call *k = take_call(w, h->request);
    if (k != NULL) {
        if (f.stream[0] == 0)
            memcpy(f.stream, k->name, sizeof f.stream);
        fail_call(w, k, &f);
        return true;
    }
    wal_read *reading = find_read(w, h->request);
    if (reading != NULL) {
        if (f.stream[0] == 0)
            memcpy(f.stream, reading->stream, sizeof f.stream);
        bool again = passes(f.code); /* it has to do with the sidecar, not with the read */
        stop_read(reading, again ? READ_INTERRUPTED : READ_ENDED, again ? NULL : &f);
        return true;
    }
    struct request *r = awaited(w, h->request);
    if (r == NULL)
        return broken(w, "an error for a request that is not awaited");
    refused(w, r, &f);
    advance(&w->flight);
    settle(w);
    return true;
}

static bool handle_read(wal *w, const struct header *h, struct scan s)
{
    uint64_t marks[2];
    wal_read *r = find_read(w, h->request);
    if (r == NULL)
        return broken(w, "a part of a read that was not asked for");
    if (h->type == HEARTBEAT || h->type == CAUGHT_UP || h->type == END) {
        if (!decode_numbers(h, s, marks, h->type == HEARTBEAT ? 1 : 2))
            return broken(w, "a mark of a read");
        saw_durable(w, marks[0]);
    }
    if (h->type == END) {
        stop_read(r, READ_ENDED, NULL);
        return true;
    }
    if (r->closed || r->failure.code != 0 || h->type == HEARTBEAT || (h->type == CAUGHT_UP && !r->caught_up))
        return true;
    /* Credit bounds what waits here; a sidecar that sends more is not one. */
    if (r->waiting > r->read_ahead + 2 * (size_t)MAX_MESSAGE_BYTES)
        return broken(w, "more of a read than was granted");
    struct arrived *a = malloc(sizeof *a + s.n);
    if (a == NULL) {
        out_of_memory(w);
        return true;
    }
    a->next = NULL;
    a->header = *h;
    if (s.n > 0)
        memcpy(a->body, s.b, s.n);
    if (r->last != NULL)
        r->last->next = a;
    else
        r->first = a;
    r->last = a;
    r->waiting += h->length;
    return true;
}

/* ---- Introduction ----------------------------------------------------------------- */

/* say writes one message of the introduction: the socket is empty, and takes it whole. */
static bool say(wal *w, unsigned char *message, size_t n)
{
    struct iovec segment = { message, n };
    ssize_t sent = door_send(w, &segment, 1);
    if (sent == (ssize_t)n)
        return true;
    fail_with(&w->lost, -WAL_DISCONNECTED, "", "introduction: the sidecar does not take it");
    return false;
}

static bool open_producer_anew(wal *w)
{
    unsigned char message[SMALL_MESSAGE_BYTES];
    w->state = OPENING_PRODUCER;
    return say(w, message, encode_producer_open(message, w->next_id++, w->in_flight, ""));
}

static bool install(wal *w, const struct producer_info *renewed);

/* went_back ends the client: the log has lost what it had answered, and going on could
 * leave holes where acked records were. */
static bool went_back(wal *w, const char *what, uint64_t now, uint64_t before)
{
    struct failure f;
    fail_with(&f, -WAL_LOG_WENT_BACK, "", "%s %llu, and was at %llu before", what, (unsigned long long)now,
              (unsigned long long)before);
    end_client(w, &f);
    return false;
}

/* ask_session_producer goes on with the producer of this client: what became of it? */
static bool ask_session_producer(wal *w)
{
    unsigned char message[SMALL_MESSAGE_BYTES];
    if (w->producer.id == 0)
        return install(w, NULL);
    if (w->producer.renew && w->producer.used_up == 0)
        return open_producer_anew(w);
    w->state = ASKING_PRODUCER;
    return say(w, message, encode_producer_get(message, w->next_id++, w->producer.id, ""));
}

/* claim opens the named producers that this client appends under anew, one by one: what an
 * earlier connection left on its way is refused from here on, and may be sent again. */
static bool claim(wal *w)
{
    unsigned char message[SMALL_MESSAGE_BYTES];
    if (w->claiming == NULL)
        return ask_session_producer(w);
    w->state = CLAIMING;
    return say(w, message, encode_producer_open(message, w->next_id++, 0, w->claiming->name));
}

/* ring_answered goes on after the answer to ShmOpen. Without shared memory the connection
 * goes on over the socket, unless the client insists. */
static bool ring_answered(wal *w, const struct header *h, struct scan s)
{
    struct shm_info info;
    struct failure f;
    uint64_t stream;
    if (h->type == SHM_INFO) {
        if (!decode_shm_info(h, s, &info))
            return broken(w, "shm_info");
        w->ring = ring_open(w, &info);
        w->alone = shares_processor(w->socket);
        if (w->ring == NULL)
            fail_with(&f, -WAL_UNSUPPORTED, "", "the shared memory of the sidecar cannot be used");
    } else if (h->type != ERROR_MESSAGE || !decode_error(h, s, &f, &stream)) {
        return broken(w, "not an answer to shm_open");
    }
    close_files(w);
    if (w->ring == NULL && (w->door == WAL_DOOR_SHM || (f.code != -WAL_OUT_OF_MEMORY && f.code != -WAL_UNSUPPORTED))) {
        w->lost = f;
        return false;
    }
    return claim(w);
}

/* welcomed goes on after Welcome. */
static bool welcomed(wal *w, const struct header *h, struct scan s)
{
    unsigned char message[SMALL_MESSAGE_BYTES];
    if (!decode_welcome(h, s, &w->offered))
        return broken(w, "welcome");
    if (w->offered.version != VERSION)
        return broken(w, "welcome of a version that this client does not speak");
    if (w->known && memcmp(w->offered.log, w->limits.log, sizeof w->limits.log) != 0) {
        /* Ids and sequences of the old log mean nothing there. */
        struct failure f;
        fail_with(&f, -WAL_WRONG_LOG, "", "the socket %s now serves another log", w->address.sun_path);
        w->lost = f;
        end_client(w, &f);
        return false;
    }
    uint64_t seen = atomic_load_explicit(&w->durable, memory_order_relaxed);
    if (w->known && w->offered.durable < seen && !w->offered.not_durable)
        return went_back(w, "the log is durable at position", w->offered.durable, seen);
    w->next_id = 1;
    w->claiming = w->producers;
    bool offered = (w->offered.features & FEATURE_SHM) != 0;
    if (w->door == WAL_DOOR_SHM && !offered) {
        fail_with(&w->lost, -WAL_UNSUPPORTED, "", "the sidecar offers no shared memory");
        return false;
    }
    if (w->door == WAL_DOOR_SOCKET || !offered)
        return claim(w);
    uint64_t ring_bytes = 0; /* as large as the sidecar likes */
    w->state = OPENING_RING;
    return say(w, message, encode_numbers(message, SHM_OPEN, 0, w->next_id++, &ring_bytes, 1));
}

static bool introduce(wal *w, const struct header *h, struct scan s)
{
    struct producer_info info;
    struct failure f;
    uint64_t stream;
    if (h->type == WELCOME && w->state == INTRODUCING && h->request == 0)
        return welcomed(w, h, s);
    if (w->state == INTRODUCING || h->request != w->next_id - 1)
        return broken(w, "not an answer to the introduction");
    if (w->state == OPENING_RING)
        return ring_answered(w, h, s);
    if (h->type == PRODUCER_INFO) {
        if (!decode_producer_info(h, s, &info) || info.id == 0)
            return broken(w, "producer_info");
        if (w->state == CLAIMING) {
            w->claiming->id = info.id;
            w->claiming = w->claiming->next;
            return claim(w);
        }
        if (w->state == OPENING_PRODUCER)
            return install(w, &info);
        if (info.last_sequence < w->producer.used_up)
            return went_back(w, "the log has the client's producer at sequence",
                             info.last_sequence, w->producer.used_up);
        /* A last sequence that was never sent is the work of somebody else. */
        return !w->producer.renew && info.last_sequence < w->producer.next ? install(w, NULL) : open_producer_anew(w);
    }
    if (h->type != ERROR_MESSAGE || !decode_error(h, s, &f, &stream))
        return broken(w, "not an answer to the introduction");
    if (w->state == ASKING_PRODUCER && f.code == -WAL_PRODUCER_EXPIRED)
        return w->producer.used_up == 0 ? open_producer_anew(w)
            : went_back(w, "the log does not know the client's producer: it is at sequence",
                        0, w->producer.used_up);
    w->lost = f;
    return false;
}

/* handle takes one message of the sidecar. */
static bool handle(wal *w, const struct header *h, struct scan s)
{
    if (h->type == GOODBYE) {
        if (!decode_goodbye(h, s, &w->lost))
            return broken(w, "goodbye");
        return false;
    }
    if (w->state != UP)
        return introduce(w, h, s);
    switch (h->type) {
    case APPEND_ACK:
        return handle_ack(w, h, s);
    case APPEND_RESULT:
        return handle_result(w, h, s);
    case ERROR_MESSAGE:
        return handle_error(w, h, s);
    case RECORDS: case REPLAY_BATCHES: case GAP: case CAUGHT_UP: case HEARTBEAT: case END:
        return handle_read(w, h, s);
    case PONG: case STATUS_JSON: case STREAM_INFO: case STREAM_PAGE: case TRIMMED: case PRODUCER_INFO:
        return handle_answer(w, h, s);
    }
    return broken(w, "a message of an unknown type");
}

/* ---- The connection ------------------------------------------------------------------ */

static bool send_call(wal *w, struct call *k)
{
    k->id = w->next_id++;
    store(k->question + AT_REQUEST, k->id, 8);
    return put_message(w, k->question, k->size) == 0;
}

/* add_call appends a call to the list and sends it if there is a connection. */
static void add_call(wal *w, struct call *k)
{
    struct call **at = &w->calls;
    while (*at != NULL)
        at = &(*at)->next;
    *at = k;
    if (w->state == UP && !send_call(w, k))
        out_of_memory(w);
}

/* renew_producer replaces the session's producer. What was sent under the old one and
 * not answered may be in the log, and is not sent again. */
static void renew_producer(wal *w, const struct producer_info *info)
{
    struct flight *f = &w->flight;
    bool doubt = false;
    w->producer = (struct session_producer){ .id = info->id, .next = 1, .window = info->window };
    for (uint64_t number = f->head; number < f->tail; number++) {
        struct request *r = flight_at(f, number);
        if (r->pending == NULL || r->sequence == 0)
            continue;
        if (r->sent) {
            doubt = true;
            refuse(w, r, -WAL_PRODUCER_EXPIRED, true, "the log no longer knows the session that sent the record");
        } else if (doubt) { /* it must not follow one of which nobody knows */
            refuse(w, r, -WAL_PRODUCER_EXPIRED, false,
                   "not appended: the outcome of a record before it is unknown");
        }
    }
}

/* ring_takes says whether everything in flight could be put into the empty ring. */
static bool ring_takes(const wal *w, const struct ring *d)
{
    const struct flight *f = &w->flight;
    if (f->bytes > d->size - d->max_message || flight_length(f) > d->max_requests)
        return false;
    for (uint64_t number = f->head; number < f->tail; number++)
        if (f->ring[number & f->mask].size > d->max_message)
            return false;
    return true;
}

/* install makes the new connection the one in use: everything unanswered is put on
 * it, in order. */
static bool install(wal *w, const struct producer_info *renewed)
{
    w->state = UP;
    w->known = true;
    w->limits = w->offered;
    w->failures = 0;
    w->down_since = NEVER;
    w->ping_ns = (int64_t)(w->limits.idle_ms / 3) * MS;
    if (w->ping_ns > 0 && w->ping_ns < 10 * MS)
        w->ping_ns = 10 * MS;
    w->ping_at = w->ping_ns > 0 ? w->now + w->ping_ns : NEVER;
    memset(&w->lost, 0, sizeof w->lost);
    saw_durable(w, w->limits.durable);
    if (renewed != NULL)
        renew_producer(w, renewed);
    restart(&w->out);
    if (w->ring != NULL && !ring_takes(w, w->ring)) {
        ring_close(w->ring); /* a connection without shared memory has admitted it */
        w->ring = NULL;
    }
    if (!rebuild(w)) {
        out_of_memory(w);
        return false;
    }
    for (struct call *k = w->calls; k != NULL; k = k->next)
        if (!send_call(w, k)) {
            out_of_memory(w);
            return false;
        }
    settle(w);
    return true;
}

/* uninstall takes the connection away. Requests that may have reached the sidecar are
 * marked; calls that must not be repeated fail. */
static void uninstall(wal *w)
{
    struct flight *f = &w->flight;
    w->state = DOWN;
    ring_close(w->ring);
    w->ring = NULL;
    for (; f->next < f->tail; f->next++) {
        struct request *r = flight_at(f, f->next);
        if (answered(r))
            continue;
        if (r->sequence != 0 && w->stall.active && w->stall.certain) {
            /* The sidecar refuses every one that follows. Should the connection have ended
             * before it read them all, it must not find the sequences used again. */
            w->producer.renew = true;
            refused_behind(w, r);
        } else if (r->id != 0 && r->chunk->sent > r->at) {
            r->sent = true;
            r->absent = false;
        }
    }
    struct call *calls = w->calls;
    w->calls = NULL;
    while (calls != NULL) {
        struct call *k = calls;
        calls = k->next;
        k->next = NULL;
        k->id = 0;
        if (k->abandoned || k->kind == SIGN_OF_LIFE) {
            free(k);
        } else if (k->repeat) {
            add_call(w, k);
        } else {
            struct failure lost;
            fail_with(&lost, -WAL_OUTCOME_UNKNOWN, k->name, "the connection was lost before the answer: %.200s",
                      w->lost.message);
            fail_call(w, k, &lost);
        }
    }
    for (wal_read *r = w->reads, *next; r != NULL; r = next) {
        next = r->next;
        if (r->state == READ_OPEN || r->closed)
            stop_read(r, READ_INTERRUPTED, NULL);
    }
}

/* disconnected ends the connection, or the attempt to get one, and decides when to try
 * again; w->lost says why. */
static void disconnected(wal *w)
{
    bool was_up = w->state == UP;
    door_close(w);
    close_files(w);
    if (was_up) {
        struct failure why = w->lost;
        take_acks(w); /* those that came before the end */
        w->lost = why;
        if (w->ended != 0)
            return;
    } else {
        ring_close(w->ring);
        w->ring = NULL;
    }
    w->in_length = 0;
    w->drop = false;
    w->ping_at = NEVER;
    if (w->lost.code == 0)
        fail_with(&w->lost, -WAL_DISCONNECTED, "", "the sidecar closed the connection");
    if (was_up)
        uninstall(w);
    w->state = DOWN;
    if (w->down_since == NEVER)
        w->down_since = w->now;
    if (was_up) {
        w->reconnect_at = w->now;
        return;
    }
    int64_t pause = backoff(w->failures++, RECONNECT_FIRST_NS, RECONNECT_LONGEST_NS);
    w->random = w->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    pause += (int64_t)((w->random >> 33) % (uint64_t)(pause / 4 + 1)); /* many clients lost it at once */
    w->reconnect_at = w->now + pause;
    if (w->give_up_ns > 0 && w->now - w->down_since >= w->give_up_ns && w->ended == 0) {
        struct failure f;
        fail_with(&f, -WAL_DISCONNECTED, "", "gave up after %lld ms without a sidecar: %.300s",
                  (long long)(w->give_up_ns / MS), w->lost.message);
        end_client(w, &f);
    }
}

/* end_client ends the client for good, once. */
static void end_client(wal *w, const struct failure *why)
{
    if (w->ended != 0)
        return;
    w->ended = why->code;
    w->end = *why;
    w->lost = *why;
    door_close(w);
    close_files(w);
    if (w->state == UP) {
        take_acks(w);
        w->lost = *why;
        uninstall(w);
    } else {
        ring_close(w->ring);
        w->ring = NULL;
    }
    w->state = DOWN;
    struct flight *f = &w->flight;
    for (uint64_t number = f->head; number < f->tail; number++) {
        struct request *r = flight_at(f, number);
        if (r->pending != NULL && r->sent)
            refuse(w, r, -WAL_OUTCOME_UNKNOWN, true, "the client ended before the answer");
        else if (r->pending != NULL)
            refuse(w, r, w->ended, false, w->end.message);
    }
    f->next = f->tail;
    end_stall(w);
    settle(w);
    while (w->calls != NULL) {
        struct call *k = w->calls;
        w->calls = k->next;
        k->next = NULL;
        fail_call(w, k, &w->end);
    }
    for (wal_read *r = w->reads, *next; r != NULL; r = next) {
        next = r->next;
        if (r->state != READ_ENDED)
            stop_read(r, READ_ENDED, &w->end);
    }
}

/* connect_now tries to get a connection; the introduction follows. */
static void connect_now(wal *w)
{
    unsigned char message[SMALL_MESSAGE_BYTES];
    int rc = door_open(w);
    w->crowded = rc == -EAGAIN;
    if (rc < 0) {
        fail_with(&w->lost, -WAL_DISCONNECTED, "", "no sidecar at %s: %s", w->address.sun_path, strerror(-rc));
        disconnected(w);
        return;
    }
    w->state = INTRODUCING;
    w->in_length = 0;
    w->handshake_by = w->now + HANDSHAKE_NS;
    memset(&w->lost, 0, sizeof w->lost);
    uint64_t features = w->door != WAL_DOOR_SOCKET ? FEATURE_SHM : 0;
    if (!say(w, message, encode_hello(message, VERSION, VERSION, features, w->log, w->name)))
        disconnected(w);
}

/* write_out writes what is queued, as far as the door takes it. */
static bool write_out(wal *w)
{
    while (w->state == UP && w->out.unsent > 0) {
        struct iovec segments[SEGMENTS];
        size_t count = 0, offered = 0;
        for (struct chunk *c = w->out.first; c != NULL && count < SEGMENTS; c = c->next)
            if (c->sent < c->length) {
                segments[count++] = (struct iovec){ c->buf + c->sent, c->length - c->sent };
                offered += c->length - c->sent;
            }
        ssize_t n = door_send(w, segments, count);
        if (n < 0) {
            fail_with(&w->lost, -WAL_DISCONNECTED, "", "connection: %s", strerror((int)-n));
            return false;
        }
        if (n > 0 && w->ping_ns > 0)
            w->ping_at = w->now + w->ping_ns;
        w->out.unsent -= (size_t)n;
        for (size_t left = (size_t)n; left > 0;) {
            struct chunk *c = w->out.first;
            size_t part = c->length - c->sent < left ? c->length - c->sent : left;
            c->sent += part;
            left -= part;
            if (c->sent == c->length && c != w->out.last)
                leave_queue(&w->out);
            else if (left > 0)
                break; /* not reached: only the last chunk stays */
        }
        if ((size_t)n < offered)
            break;
    }
    return true;
}

/* handle_arrived handles the whole messages that are there. */
static bool handle_arrived(wal *w)
{
    size_t at = 0;
    struct header h;
    bool well = true;
    while (well && w->in_length - at >= HEADER_BYTES) {
        if (!decode_header(w->in + at, &h)) {
            well = broken(w, "a header");
            break;
        }
        if (w->in_length - at < h.length)
            break;
        struct scan s = { .b = w->in + at + HEADER_BYTES, .n = h.length - HEADER_BYTES };
        well = handle(w, &h, s) && !w->drop && w->ended == 0;
        at += h.length;
    }
    memmove(w->in, w->in + at, w->in_length - at);
    w->in_length -= at;
    if (well && w->in_length >= HEADER_BYTES && decode_header(w->in, &h) && h.length > w->in_capacity) {
        unsigned char *larger = realloc(w->in, h.length);
        if (larger == NULL) {
            out_of_memory(w);
            return false;
        }
        w->in = larger;
        w->in_capacity = h.length;
    }
    return well;
}

/* read_in takes what came and handles it; whether anything did. */
static bool read_in(wal *w, bool *well)
{
    ssize_t n = door_receive(w, w->in + w->in_length, w->in_capacity - w->in_length);
    *well = n > 0 || n == -EAGAIN;
    if (n > 0) {
        w->in_length += (size_t)n;
        *well = handle_arrived(w);
    } else if (n != -EAGAIN && w->lost.code == 0) {
        fail_with(&w->lost, -WAL_DISCONNECTED, "", "%s",
                  n == -EPIPE ? "the sidecar closed the connection" : strerror((int)-n));
    }
    return n != -EAGAIN;
}

/* move_bytes writes and reads what is possible now; whether anything came. */
static bool move_bytes(wal *w, bool reading)
{
    bool well = true, came = false;
    if (w->socket >= 0 && !write_out(w)) {
        /* What it said before it closed tells why. */
        struct failure why = w->lost;
        memset(&w->lost, 0, sizeof w->lost);
        while (w->socket >= 0 && read_in(w, &well) && well)
            continue;
        if (w->lost.code == 0)
            w->lost = why;
        well = false;
        came = true;
    } else if (w->socket >= 0 && reading) {
        came = read_in(w, &well);
    }
    if (w->ended == 0 && (!well || w->drop)) {
        disconnected(w);
        came = true;
    }
    return came;
}

/* ---- Time --------------------------------------------------------------------------------- */

static bool read_consumed(const wal_read *r) { return r->first == NULL && (r->current == NULL || r->left == 0); }

/* ask_read asks for the rest of a read, unless nothing is left. */
static void ask_read(wal *w, wal_read *r)
{
    unsigned char message[SMALL_MESSAGE_BYTES];
    uint64_t left = 0;
    if (r->limit > 0) {
        if (r->count >= r->limit && r->cut == 0) {
            r->state = READ_ENDED;
            return;
        }
        left = r->cut + max_u64(r->limit, r->count + 1) - r->count;
    }
    uint64_t id = w->next_id++;
    size_t n;
    if (r->replay) {
        uint64_t numbers[3] = { r->value, left, r->read_ahead };
        n = encode_numbers(message, REPLAY, r->follow ? FLAG_FOLLOW : 0, id, numbers, 3);
    } else {
        unsigned from = r->start == WAL_FROM_TIME ? 1 : r->start == WAL_FROM_LAST ? 2 : 0;
        n = encode_read(message, r->follow, id, r->stream_id, from, r->value, left, r->read_ahead);
    }
    r->id = id;
    r->state = READ_OPEN;
    r->asked_value = r->value;
    r->consumed = 0;
    if (put_message(w, message, n) < 0)
        out_of_memory(w);
}

/* run_reads asks again for reads that were interrupted. */
static void run_reads(wal *w)
{
    for (wal_read *r = w->reads, *next; r != NULL; r = next) {
        next = r->next;
        if (r->failure.code != 0 && r->state != READ_OPEN)
            r->state = READ_ENDED;
        if (r->state == READ_INTERRUPTED && read_consumed(r)) {
            if (r->value != r->asked_value)
                r->failures = 0;
            r->ask_at = w->now + backoff(r->failures++, RETRY_FIRST_NS, RETRY_LONGEST_NS);
            r->state = READ_ASK;
        }
        if (r->state == READ_ASK && w->state == UP && w->now >= r->ask_at)
            ask_read(w, r);
        if (w->ended != 0)
            return; /* next may be gone */
    }
}

/* run_timers does what is due. */
static void run_timers(wal *w)
{
    if (w->state == DOWN && w->now >= w->reconnect_at)
        connect_now(w);
    else if (w->state != DOWN && w->state != UP && w->now >= w->handshake_by) {
        fail_with(&w->lost, -WAL_NOT_READY, "", "the sidecar at %s does not answer", w->address.sun_path);
        disconnected(w);
    }
    if (w->ended != 0)
        return;
    if (w->state == UP && w->stall.active && w->now >= w->stall.resume_at) {
        if (!rebuild(w)) {
            out_of_memory(w);
            return;
        }
        settle(w);
    }
    if (w->state == UP && w->now >= w->ping_at) {
        struct call *k = calloc(1, sizeof *k);
        w->ping_at = w->now + w->ping_ns;
        if (k != NULL) {
            k->kind = SIGN_OF_LIFE;
            k->want = PONG;
            k->size = encode_numbers(k->question, PING, 0, 0, NULL, 0);
            add_call(w, k);
        }
    }
    run_reads(w);
}

/* next_timer returns when run_timers has something to do. */
static int64_t next_timer(const wal *w)
{
    int64_t at = NEVER;
    if (w->ended != 0)
        return at;
    if (w->state == DOWN)
        at = w->reconnect_at;
    else if (w->state != UP)
        at = w->handshake_by;
    else {
        at = w->ping_at;
        if (w->stall.active && w->stall.resume_at < at)
            at = w->stall.resume_at;
    }
    for (const wal_read *r = w->reads; r != NULL; r = r->next) {
        if (r->state == READ_INTERRUPTED && read_consumed(r))
            return 0;
        if (r->state == READ_ASK && w->state == UP && r->ask_at < at)
            at = r->ask_at;
    }
    return at;
}

static int64_t deadline_of(int timeout_ms)
{
    return timeout_ms < 0 ? NEVER : clock_ns() + timeout_ms * MS;
}

/* pump goes round once: timers, writing, reading. Until the deadline it waits for
 * something to do. */
static void pump(wal *w, int64_t deadline)
{
    if (w->ended != 0)
        return;
    w->now = clock_ns();
    run_timers(w);
    bool waiting = w->now < deadline;
    bool acks = take_acks(w);
    if (acks && w->ring != NULL && ++w->ring->rounds % SOCKET_EVERY != 0 && !w->drop && w->out.unsent == 0)
        return;
    waiting = waiting && !acks;
    if (w->ended != 0 || move_bytes(w, !waiting) || !waiting || w->ended != 0)
        return;
    int64_t until = next_timer(w);
    if (until > deadline)
        until = deadline;
    if (w->state == UP && w->ring != NULL && w->flight.next < w->flight.tail) {
        /* One thread cannot sleep on the acks and on the socket: it looks at the socket in turns. */
        if (!ring_look(w->ring, w->waiting, w->alone))
            ring_sleep(w->ring, until - w->now < SLEEP_NS ? (until > w->now ? until - w->now : 0) : SLEEP_NS);
        w->now = clock_ns();
        if (!take_acks(w) || w->drop)
            move_bytes(w, true);
        return;
    }
    struct pollfd p = { .fd = w->socket, .events = POLLIN };
    if (w->state == UP && w->out.unsent > 0)
        p.events |= POLLOUT;
    int64_t pause = until > w->now ? until - w->now : 0;
    struct timespec t = { .tv_sec = (time_t)(pause / SECOND), .tv_nsec = (long)(pause % SECOND) };
    int n = ppoll(&p, 1, until == NEVER ? NULL : &t, NULL);
    w->now = clock_ns();
    if (n > 0)
        move_bytes(w, true);
    else
        run_timers(w);
}

/* ---- The descriptor for event loops ----------------------------------------------------- */

static bool has_room(const wal *w, size_t size, size_t slots)
{
    const struct flight *f = &w->flight;
    size_t length = flight_length(f);
    const struct ring *d = w->state == UP ? w->ring : NULL;
    if (w->stall.active || (d != NULL && !ring_fits(d, size)))
        return false;
    if (length == 0)
        return true;
    size_t requests = w->limits.max_requests > 0 ? w->limits.max_requests : 1;
    if (requests > w->in_flight)
        requests = w->in_flight;
    uint64_t bytes = min_u64(w->in_flight_bytes, max_u64(w->limits.max_request_bytes, 1));
    if (d != NULL) { /* all of it could be written once more behind itself, with a pad */
        requests = (size_t)min_u64(requests, d->max_requests);
        bytes = min_u64(bytes, d->size - d->max_message);
    }
    size_t window = w->producer.window > 0 ? w->producer.window : w->in_flight;
    return length < requests && f->bytes + size <= bytes && f->slots + w->producer.kept + slots <= window;
}

static bool read_ready(const wal_read *r)
{
    return !r->closed && (!read_consumed(r) || (r->state == READ_ENDED && !r->end_told));
}

/* has_work says whether wal_poll or wal_next has something to do without the socket. */
static bool has_work(const wal *w)
{
    if (w->ready != NULL || w->ended != 0)
        return true;
    for (const wal_read *r = w->reads; r != NULL; r = r->next)
        if (read_ready(r))
            return true;
    if (!w->wanted || !has_room(w, w->wanted_size, w->wanted_slots))
        return false;
    for (const struct call *k = w->calls; k != NULL; k = k->next)
        if (k->kind == LEARN_STREAM || k->kind == LEARN_PRODUCER || k->kind == LEARN_SESSION)
            return false;
    return true;
}

/* update_event makes the descriptor readable for as long as there is something to do.
 * Every function that can change that calls it last. */
static void update_event(wal *w)
{
    if (w->event < 0)
        return;
    uint32_t interest = EPOLLIN | (w->state == UP && w->out.unsent > 0 ? EPOLLOUT : 0);
    if (w->socket >= 0 && (!w->in_epoll || interest != w->interest)) {
        struct epoll_event e = { .events = interest };
        if (epoll_ctl(w->event, w->in_epoll ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, w->socket, &e) == 0) {
            w->in_epoll = true;
            w->interest = interest;
        }
    }
    bool work = has_work(w);
    if (work != w->signalled) {
        eventfd_t count;
        if ((work ? eventfd_write(w->signal, 1) : eventfd_read(w->signal, &count)) == 0)
            w->signalled = work;
    }
    int64_t at = next_timer(w);
    /* A timer that goes off too early costs less than setting it anew for each append. */
    if (at < w->timer_at || w->timer_at <= w->now) {
        struct itimerspec t = { 0 };
        if (at != NEVER) {
            int64_t set = at > 0 ? at : 1;
            t.it_value = (struct timespec){ .tv_sec = (time_t)(set / SECOND), .tv_nsec = (long)(set % SECOND) };
        }
        if (timerfd_settime(w->timer, TFD_TIMER_ABSTIME, &t, NULL) == 0)
            w->timer_at = at;
    }
}

/* ---- Open and close ------------------------------------------------------------------------ */

/* take_struct copies a caller's struct of another version of the header: what it does
 * not have is zero, what this library does not know must be zero. */
static int take_struct(void *to, size_t known, const void *from)
{
    memset(to, 0, known);
    if (from == NULL)
        return 0;
    size_t size;
    memcpy(&size, from, sizeof size);
    if (size < sizeof size)
        return -EINVAL;
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)from)[i] != 0)
            return -E2BIG;
    memcpy(to, from, size < known ? size : known);
    return 0;
}

static void drop_arrived(wal_read *r)
{
    free(r->current);
    r->current = NULL;
    r->left = 0;
    while (r->first != NULL) {
        struct arrived *a = r->first;
        r->first = a->next;
        free(a);
    }
    r->last = NULL;
    r->waiting = 0;
}

static void free_read(wal_read *r)
{
    wal_read **at = &r->w->reads;
    while (*at != NULL && *at != r)
        at = &(*at)->next;
    if (*at == r)
        *at = r->next;
    drop_arrived(r);
    map_clear(&r->names);
    map_clear(&r->partial);
    free(r);
}

static void free_chunks(struct outgoing *o)
{
    restart(o);
    while (o->spare != NULL) {
        struct chunk *c = o->spare;
        o->spare = c->next;
        free(c->buf);
        free(c);
    }
}

static void free_client(wal *w)
{
    while (w->reads != NULL)
        free_read(w->reads);
    while (w->learned != NULL) {
        struct learned *l = w->learned;
        w->learned = l->next;
        free(l);
    }
    for (size_t i = 0; i < w->pending_count; i++) {
        free(w->pendings[i]->placed);
        free(w->pendings[i]->failure);
        free(w->pendings[i]);
    }
    for (size_t i = 0; i < STREAM_ROWS; i++)
        while (w->rows[i] != NULL)
            forget_stream(w, w->rows[i]);
    forget_producers(w, NULL);
    ring_close(w->ring);
    free_chunks(&w->out);
    free_chunks(&w->copies);
    int fds[] = { w->event, w->signal, w->timer };
    for (size_t i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(w->pendings);
    free(w->free_pendings);
    free(w->placed);
    free(w->scratch);
    free(w->flight.ring);
    free(w->in);
    free(w);
}

/* new_client makes a client that is not connected. */
static wal *new_client(const char *path, const wal_opts *o)
{
    wal *w = calloc(1, sizeof *w);
    if (w == NULL)
        return NULL;
    atomic_init(&w->durable, 0);
    w->socket = w->event = w->signal = w->timer = -1;
    w->kept.previous = w->kept.next = &w->kept;
    w->down_since = w->ping_at = w->timer_at = NEVER;
    end_stall(w);
    w->address.sun_family = AF_UNIX;
    copy_text(w->address.sun_path, sizeof w->address.sun_path, path, strlen(path));
    const char *name = o->name != NULL ? o->name : program_invocation_short_name;
    copy_text(w->name, sizeof w->name, name, strlen(name));
    w->door = o->door;
    w->waiting = o->waiting;
    if (o->log != NULL)
        copy_text(w->log, sizeof w->log, o->log, strlen(o->log));
    w->in_flight = o->in_flight > 0 ? o->in_flight : WAL_DEFAULT_IN_FLIGHT;
    if (w->in_flight > WAL_MAX_IN_FLIGHT)
        w->in_flight = WAL_MAX_IN_FLIGHT;
    w->in_flight_bytes = o->in_flight_bytes > 0 ? o->in_flight_bytes : WAL_DEFAULT_IN_FLIGHT_BYTES;
    w->give_up_ns = o->give_up_after_ms * MS;
    w->wait_while_full = o->wait_while_full != 0;
    w->random = (uint64_t)clock_ns() ^ (uint64_t)getpid() << 32;
    size_t slots = 1;
    while (slots < w->in_flight)
        slots *= 2;
    w->flight.ring = calloc(slots, sizeof *w->flight.ring);
    w->flight.mask = slots - 1;
    w->in_capacity = IN_BYTES;
    w->in = malloc(w->in_capacity);
    if (w->flight.ring == NULL || w->in == NULL) {
        free_client(w);
        return NULL;
    }
    return w;
}

/* open_failed tells why there is no handle. */
static int open_failed(const wal_opts *o, int code, const char *message)
{
    if (o->error_text != NULL && o->error_text_bytes > 0)
        copy_text(o->error_text, o->error_text_bytes, message, strlen(message));
    return code;
}

int wal_open(wal **out, const char *path, const wal_opts *opts)
{
    wal_opts o;
    if (out == NULL)
        return -EINVAL;
    *out = NULL;
    int rc = take_struct(&o, sizeof o, opts);
    if (rc < 0)
        return rc;
    if (path == NULL || path[0] == 0)
        return open_failed(&o, -EINVAL, "no path of a socket");
    if (strlen(path) >= sizeof ((struct sockaddr_un *)0)->sun_path)
        return open_failed(&o, -EINVAL, "the path of a Unix socket has at most 107 bytes");
    if (o.door < WAL_DOOR_AUTO || o.door > WAL_DOOR_SOCKET || o.waiting < WAL_WAIT_ADAPTIVE || o.waiting > WAL_WAIT_BLOCK)
        return open_failed(&o, -EINVAL, "no such door, or way of waiting");
    if (o.log != NULL && strlen(o.log) > MAX_NODE_BYTES)
        return open_failed(&o, -EINVAL, "the log selector has at most 63 bytes");
    wal *w = new_client(path, &o);
    if (w == NULL)
        return open_failed(&o, -ENOMEM, "no memory for a client");
    uint32_t ms = o.open_timeout_ms > 0 ? o.open_timeout_ms : WAL_DEFAULT_OPEN_TIMEOUT_MS;
    int64_t deadline = clock_ns() + ms * MS;
    while (w->state != UP && w->ended == 0 && (w->failures == 0 || w->crowded) && clock_ns() < deadline)
        pump(w, deadline);
    if (w->state == UP) {
        *out = w;
        return 0;
    }
    if (w->lost.code == 0)
        fail_with(&w->lost, -WAL_NOT_READY, "", "the sidecar at %s does not answer", path);
    rc = open_failed(&o, w->lost.code, w->lost.message);
    wal_close(w);
    return rc;
}

void wal_cancel(wal *w)
{
    struct failure f;
    fail_with(&f, -ECANCELED, "", "the client was closed");
    end_client(w, &f);
    update_event(w);
}

int wal_close(wal *w)
{
    if (w == NULL)
        return 0;
    if (w->calling)
        return -EDEADLK;
    wal_cancel(w);
    free_client(w);
    return 0;
}

void wal_get_log_info(const wal *w, wal_log_info *info)
{
    const struct welcome *m = &w->limits;
    memset(info, 0, sizeof *info);
    memcpy(info->uuid, m->log, sizeof info->uuid);
    info->epoch = m->epoch;
    info->trim = m->trim;
    info->max_batch_records = m->max_batch_records;
    info->max_batch_bytes = m->max_batch_bytes;
    info->read_only = m->read_only;
    info->not_durable = m->not_durable;
    memcpy(info->node, m->node, sizeof info->node);
    memcpy(info->server, m->server, sizeof info->server);
    info->shared_memory = w->ring != NULL;
}

const wal_error *wal_last_error(const wal *w)
{
    const struct failure *f = &w->last;
    const struct error_info *info = error_info(f->code);
    ((wal *)w)->error = (wal_error){
        .code = f->code, .outcome_unknown = f->outcome_unknown, .retriable = info != NULL && info->retriable,
        .has_actual = f->has_actual, .has_offset = f->has_offset, .has_position = f->has_position,
        .entry = f->entry, .actual = f->actual, .offset = f->offset, .position = f->position,
        .stream = f->stream, .message = f->message, .hint = f->hint,
    };
    return &w->error;
}

uint64_t wal_durable(const wal *w)
{
    return atomic_load_explicit(&((wal *)w)->durable, memory_order_acquire);
}

size_t wal_in_flight(const wal *w) { return flight_length(&w->flight); }

/* ---- Append ----------------------------------------------------------------------------------- */

static bool good_name(const char *name)
{
    size_t n = name != NULL ? strlen(name) : 0;
    return n > 0 && n <= WAL_MAX_NAME;
}

/* need asks the sidecar for what an append has to know: -EAGAIN until it is known, or
 * why it cannot be. */
static int need(wal *w, enum call_kind kind, const char *name, bool create)
{
    for (struct learned **at = &w->learned; *at != NULL; at = &(*at)->next) {
        struct learned *l = *at;
        if (l->kind != kind || l->create != create || strcmp(l->name, name) != 0)
            continue;
        int rc = remember(w, &l->failure);
        *at = l->next;
        free(l);
        return rc;
    }
    for (struct call *k = w->calls; k != NULL; k = k->next)
        if (k->kind == kind && k->create == create && strcmp(k->name, name) == 0)
            return -EAGAIN;
    struct call *k = calloc(1, sizeof *k);
    if (k == NULL)
        return FAIL(w, -ENOMEM, name, "append: no memory for a request");
    k->kind = kind;
    k->repeat = true;
    k->create = create;
    k->want = kind == LEARN_STREAM ? STREAM_INFO : PRODUCER_INFO;
    copy_text(k->name, sizeof k->name, name, strlen(name));
    if (kind == LEARN_STREAM)
        k->size = encode_name(k->question, STREAM_OPEN, create ? FLAG_CREATE : 0, 0, name);
    else
        k->size = encode_producer_open(k->question, 0, kind == LEARN_SESSION ? w->in_flight : 0, name);
    add_call(w, k);
    return -EAGAIN;
}

static int too_large(wal *w, const char *stream, const char *what, size_t n, size_t limit)
{
    return FAIL(w, -WAL_TOO_LARGE, stream, "append: %s of %zu, the limit is %zu", what, n, limit);
}

/* check_headers adds up the headers block of an entry. */
static int check_headers(wal *w, const char *stream, struct entry *e)
{
    size_t count = 0, bytes = 2;
    for (int from = 0; from < 2; from++)
        for (size_t i = 0; i < e->header_counts[from]; i++) {
            const wal_header *h = &e->headers[from][i];
            size_t key = h->key != NULL ? key_bytes(h) : 0;
            if (key == 0 || key > 255 || (h->value == NULL && h->value_bytes > 0))
                return FAIL(w, -WAL_BAD_REQUEST, stream, "append: a key of a header has 1 to 255 bytes");
            if (++count > WAL_MAX_HEADERS)
                return too_large(w, stream, "record, in headers,", count, WAL_MAX_HEADERS);
            if (h->value_bytes > MAX_HEADERS_BYTES || (bytes += 6 + key + h->value_bytes) > MAX_HEADERS_BYTES)
                return too_large(w, stream, "headers, in bytes,", h->value_bytes + bytes, MAX_HEADERS_BYTES);
        }
    e->block_bytes = count > 0 ? bytes : 0;
    return 0;
}

/* prepare makes one record of what the caller gave. */
static int prepare(wal *w, const wal_entry *from, const wal_append_opts *o, bool first, struct entry *e)
{
    *e = (struct entry){ .data = from->data, .data_bytes = from->data_bytes };
    if (!good_name(from->stream))
        return FAIL(w, -WAL_BAD_REQUEST, "", "append: the name of a stream has 1 to 255 bytes");
    if (from->data == NULL && from->data_bytes > 0)
        return FAIL(w, -EINVAL, from->stream, "append: no data");
    if (from->data_bytes > MAX_MESSAGE_BYTES)
        return too_large(w, from->stream, "record, in bytes,", from->data_bytes, MAX_MESSAGE_BYTES);
    e->token = from->token_bytes > 0 ? from->token : o->token;
    e->token_bytes = from->token_bytes > 0 ? from->token_bytes : o->token_bytes;
    if (e->token_bytes > WAL_MAX_TOKEN)
        return too_large(w, from->stream, "token, in bytes,", e->token_bytes, WAL_MAX_TOKEN);
    if (from->has_expect || (first && o->has_expect)) {
        e->has_expect = true;
        e->expect = from->has_expect ? from->expect : o->expect;
    }
    e->headers[0] = o->headers;
    e->header_counts[0] = o->header_count;
    e->headers[1] = from->headers;
    e->header_counts[1] = from->header_count;
    return check_headers(w, from->stream, e);
}

/* appending is one append on its way into flight. */
struct appending {
    const wal_entry *entries;
    size_t count;
    bool batch;
    wal_append_opts o;
    uint64_t producer; /* from here on set by resolve */
    size_t size, slots, distinct;
};

/* resolve finds what the append has to know, and its size. */
static int resolve(wal *w, struct appending *a)
{
    int lacks = 0, rc;
    if (a->o.producer != NULL) {
        if (!good_name(a->o.producer))
            return FAIL(w, -WAL_BAD_REQUEST, "", "append: the name of a producer has 1 to 255 bytes");
        const struct producer_ref *p = find_producer(w, a->o.producer);
        if (p != NULL)
            a->producer = p->id;
        else if ((lacks = need(w, LEARN_PRODUCER, a->o.producer, false)) != -EAGAIN)
            return lacks;
    } else {
        a->producer = w->producer.id;
        if (a->producer == 0 && (lacks = need(w, LEARN_SESSION, "", false)) != -EAGAIN)
            return lacks;
    }
    a->size = HEADER_BYTES + 24 + 8;
    a->distinct = 0;
    w->batches++;
    for (size_t i = 0; i < a->count; i++) {
        struct entry e;
        if ((rc = prepare(w, &a->entries[i], &a->o, i == 0, &e)) < 0)
            return rc;
        a->size += entry_bytes(&e);
        struct stream_ref *s = find_stream(w, a->entries[i].stream);
        if (s == NULL) {
            if ((lacks = need(w, LEARN_STREAM, a->entries[i].stream, !a->o.must_exist)) != -EAGAIN)
                return lacks;
            continue;
        }
        w->scratch[i] = s;
        if (s->batch != w->batches)
            a->distinct++;
        s->batch = w->batches;
    }
    size_t limit = (size_t)min_u64(w->limits.max_message_bytes, MAX_MESSAGE_BYTES);
    if (w->state == UP && w->ring != NULL)
        limit = (size_t)min_u64(limit, w->ring->max_message);
    size_t window = w->producer.window > 0 ? w->producer.window : w->in_flight;
    a->slots = a->o.producer != NULL ? 0 : a->distinct;
    if (a->size > limit)
        return too_large(w, a->batch ? "" : a->entries[0].stream, "message, in bytes,", a->size, limit);
    if (a->slots > window)
        return too_large(w, "", "batch, in distinct streams,", a->slots, window);
    return lacks;
}

/* enqueue puts an append that was resolved in flight. */
static int enqueue(wal *w, struct appending *a, wal_ticket *ticket)
{
    struct request r = { .size = a->size, .slots = a->slots };
    if (a->batch && (r.targets = malloc(a->distinct * sizeof *r.targets)) == NULL)
        return FAIL(w, -ENOMEM, "", "append: no memory for a batch");
    struct ring *d = w->state == UP ? w->ring : NULL;
    struct chunk *c = reserve(d != NULL ? &w->copies : &w->out, a->size);
    struct pending *p = c != NULL ? new_pending(w) : NULL;
    if (p == NULL) {
        free(r.targets);
        return FAIL(w, -ENOMEM, "", "append: no memory for the record");
    }
    r.chunk = c;
    r.at = c->length;
    uint64_t sequence = a->o.sequence, acked = 0;
    if (a->o.producer == NULL) {
        r.sequence = sequence = w->producer.next++;
        acked = w->producer.acked;
    }
    r.id = append_id(w);
    struct encoder e = begin_append(c->buf + r.at, r.id, true, a->producer, sequence, acked, a->count);
    w->batches++;
    for (size_t i = 0; i < a->count; i++) {
        struct stream_ref *s = w->scratch[i];
        struct entry entry;
        prepare(w, &a->entries[i], &a->o, i == 0, &entry); /* resolve has checked it */
        entry.stream = s->id;
        put_entry(&e, &entry);
        if (a->batch && s->batch != w->batches) {
            r.targets[r.target_count++] = (struct target){ s, (uint32_t)i };
            s->uses++;
        } else if (!a->batch) {
            r.one = (struct target){ s, 0 };
            s->uses++;
        }
        s->batch = w->batches;
    }
    finish_message(&e);
    if (d != NULL) {
        r.end = ring_put(d, c->buf + r.at, a->size);
        claim_copy(&w->copies, c, a->size);
        ring_publish(d);
    } else {
        claim_message(&w->out, c, a->size);
    }
    r.pending = p;
    r.serial = p->serial = ++w->submitted;
    p->done = a->o.done;
    p->opaque = a->o.opaque;
    if (p->done == NULL) {
        p->next = &w->kept;
        p->previous = w->kept.previous;
        p->previous->next = p;
        w->kept.previous = p;
    }
    struct flight *f = &w->flight;
    *flight_at(f, f->tail++) = r;
    f->bytes += r.size;
    f->slots += r.slots;
    if (ticket != NULL)
        *ticket = p->ticket;
    return 0;
}

/* try_submit puts an append in flight now, or says -EAGAIN. */
static int try_submit(wal *w, struct appending *a, wal_ticket *ticket)
{
    if (w->ended != 0)
        return remember(w, &w->end);
    if (w->scratch == NULL && (w->scratch = malloc(WAL_MAX_BATCH * sizeof *w->scratch)) == NULL)
        return FAIL(w, -ENOMEM, "", "append: no memory for a batch");
    int rc = resolve(w, a);
    if (rc < 0 && rc != -EAGAIN)
        return rc;
    if (w->ended != 0)
        return remember(w, &w->end);
    if (a->o.done == NULL && w->untaken >= WAL_MAX_RESULTS)
        return FAIL(w, -ENOBUFS, "", "append: %d results wait to be taken", WAL_MAX_RESULTS);
    if (rc == 0 && !has_room(w, a->size, a->slots))
        take_acks(w);
    if (w->ended != 0)
        return remember(w, &w->end);
    if (rc == -EAGAIN || !has_room(w, a->size, a->slots)) {
        w->wanted = true;
        w->wanted_size = a->size;
        w->wanted_slots = a->slots;
        return -EAGAIN;
    }
    rc = enqueue(w, a, ticket);
    if (rc < 0)
        return rc;
    /* A lone record goes at once; many collect until there is a pump. */
    bool lone = flight_length(&w->flight) == 1 && a->size <= LONE_BYTES;
    if (w->state == UP && w->ring == NULL && (lone || w->out.unsent >= CHUNK_BYTES))
        move_bytes(w, false);
    return 0;
}

static int submit(wal *w, struct appending *a, const wal_append_opts *opts, int64_t deadline, wal_ticket *ticket)
{
    int rc = take_struct(&a->o, sizeof a->o, opts);
    if (rc < 0)
        return FAIL(w, rc, "", "append: bad size of the options");
    if (a->count == 0)
        return FAIL(w, -WAL_BAD_REQUEST, "", "append: a batch has at least one record");
    if (a->count > WAL_MAX_BATCH)
        return too_large(w, "", "batch, in records,", a->count, WAL_MAX_BATCH);
    if (ticket == NULL && a->o.done == NULL)
        return FAIL(w, -EINVAL, "", "append: without a callback there must be a place for the ticket");
    rc = try_submit(w, a, ticket);
    for (bool waited = false; rc == -EAGAIN && deadline != 0; waited = true) {
        if (waited && w->stall.full) { /* nothing overtakes the one for which the log was full */
            struct failure f;
            behind_full(w, a->batch ? "" : a->entries[0].stream, &f);
            return remember(w, &f);
        }
        if (waited && clock_ns() >= deadline)
            return FAIL(w, -ETIMEDOUT, "", "append: not submitted: no room in flight, or no answer about the stream: %.300s",
                        w->lost.message);
        pump(w, deadline);
        rc = try_submit(w, a, ticket);
    }
    if (rc == -EAGAIN)
        FAIL(w, rc, "", "append: it would have to wait for room or for the sidecar");
    return rc;
}

/* wait_for waits for the answer and takes it. */
static int wait_for(wal *w, struct pending *p, int64_t deadline, wal_result *result)
{
    while (!p->answered) {
        if (clock_ns() >= deadline) {
            FAIL(w, -ETIMEDOUT, "", "append: no answer yet: %.300s", w->lost.message);
            w->last.outcome_unknown = true;
            return -ETIMEDOUT;
        }
        pump(w, deadline);
    }
    return take_result(w, p, result);
}

static struct pending *pending_of(wal *w, wal_ticket ticket)
{
    size_t at = (size_t)(ticket & (((wal_ticket)1 << TICKET_BITS) - 1));
    if (at >= w->pending_count)
        return NULL;
    struct pending *p = w->pendings[at];
    return p->ticket == ticket && p->serial > 0 && p->done == NULL && !p->abandoned ? p : NULL;
}

static int append(wal *w, struct appending *a, const wal_append_opts *opts, int timeout_ms, wal_result *result)
{
    wal_ticket ticket = 0;
    int64_t deadline = deadline_of(timeout_ms);
    if (result != NULL)
        memset(result, 0, sizeof *result);
    if (opts != NULL && opts->size >= offsetof(wal_append_opts, done) + sizeof opts->done && opts->done != NULL)
        return FAIL(w, -EINVAL, "", "append: a callback goes with wal_submit");
    int rc = submit(w, a, opts, deadline, &ticket);
    if (rc == 0) {
        struct pending *p = pending_of(w, ticket);
        rc = wait_for(w, p, deadline, result);
        if (rc == -ETIMEDOUT && !p->answered) {
            p->abandoned = true;
            unkeep(p);
        }
    }
    if (result != NULL)
        result->error = rc;
    update_event(w);
    return rc;
}

int wal_append(wal *w, const char *stream, const void *data, size_t data_bytes, const wal_append_opts *opts,
               int timeout_ms, wal_result *result)
{
    wal_entry one = { .stream = stream, .data = data, .data_bytes = data_bytes };
    struct appending a = { .entries = &one, .count = 1 };
    return append(w, &a, opts, timeout_ms, result);
}

int wal_append_batch(wal *w, const wal_entry *entries, size_t count, const wal_append_opts *opts, int timeout_ms,
                     wal_result *result)
{
    struct appending a = { .entries = entries, .count = count, .batch = true };
    return append(w, &a, opts, timeout_ms, result);
}

int wal_submit(wal *w, const char *stream, const void *data, size_t data_bytes, const wal_append_opts *opts,
               int timeout_ms, wal_ticket *ticket)
{
    wal_entry one = { .stream = stream, .data = data, .data_bytes = data_bytes };
    struct appending a = { .entries = &one, .count = 1 };
    int rc = submit(w, &a, opts, timeout_ms != 0 ? deadline_of(timeout_ms) : 0, ticket);
    update_event(w);
    return rc;
}

int wal_submit_batch(wal *w, const wal_entry *entries, size_t count, const wal_append_opts *opts, int timeout_ms,
                     wal_ticket *ticket)
{
    struct appending a = { .entries = entries, .count = count, .batch = true };
    int rc = submit(w, &a, opts, timeout_ms != 0 ? deadline_of(timeout_ms) : 0, ticket);
    update_event(w);
    return rc;
}

int wal_try_append(wal *w, const char *stream, const void *data, size_t data_bytes, const wal_append_opts *opts,
                   wal_ticket *ticket)
{
    return wal_submit(w, stream, data, data_bytes, opts, 0, ticket);
}

int wal_wait(wal *w, wal_ticket ticket, int timeout_ms, wal_result *result)
{
    struct pending *p = pending_of(w, ticket);
    if (result != NULL)
        memset(result, 0, sizeof *result);
    int rc;
    if (p == NULL)
        rc = FAIL(w, -ESTALE, "", "wait: the ticket's answer was taken before, or goes to a callback");
    else
        rc = wait_for(w, p, deadline_of(timeout_ms), result);
    if (result != NULL)
        result->error = rc;
    update_event(w);
    return rc;
}

int wal_flush(wal *w, int timeout_ms)
{
    struct flight *f = &w->flight;
    uint64_t up_to = w->submitted;
    int64_t deadline = deadline_of(timeout_ms);
    while (flight_length(f) > 0 && flight_at(f, f->head)->serial <= up_to) {
        if (clock_ns() >= deadline) {
            int rc = FAIL(w, -ETIMEDOUT, "", "flush: %zu appends are not answered: %.300s", flight_length(f),
                          w->lost.message);
            update_event(w);
            return rc;
        }
        pump(w, deadline);
    }
    int rc = 0;
    for (struct pending *p = w->kept.next, *next; p != &w->kept && p->serial <= up_to; p = next) {
        next = p->next;
        if (rc == 0 && p->result.error != 0) {
            rc = p->result.error;
            if (p->failure != NULL)
                remember(w, p->failure);
            else
                FAIL(w, rc, "", "%s", wal_strerror(rc));
        }
        free_pending(w, p);
    }
    update_event(w);
    return rc;
}

/* ---- Event loops ------------------------------------------------------------------------------- */

int wal_poll(wal *w, int timeout_ms)
{
    if (w->calling)
        return FAIL(w, -EDEADLK, "", "poll: not allowed inside a callback");
    bool wait = timeout_ms != 0 && w->ready == NULL;
    pump(w, wait ? deadline_of(timeout_ms) : 0);
    int called = 0;
    w->calling = true;
    for (size_t n = w->ready_count; n > 0; n--, called++) {
        struct pending *p = w->ready;
        w->ready = p->next;
        if (w->ready == NULL)
            w->ready_last = NULL;
        w->ready_count--;
        p->next = NULL;
        if (p->failure != NULL)
            remember(w, p->failure);
        wal_result result = p->result;
        result.placed = p->placed;
        p->done(w, p->ticket, &result, p->opaque);
        free_pending(w, p);
    }
    w->calling = false;
    w->wanted = false;
    int rc = called == 0 && w->ended != 0 ? remember(w, &w->end) : called;
    if (called > 0 && w->state == UP)
        move_bytes(w, false); /* what the callbacks submitted */
    update_event(w);
    return rc;
}

int wal_event_fd(wal *w)
{
    if (w->event >= 0)
        return w->event;
    if (w->door == WAL_DOOR_SHM)
        return FAIL(w, -WAL_UNSUPPORTED, "", "event fd: shared memory makes no descriptor readable; use the socket");
    w->door = WAL_DOOR_SOCKET;
    int event = epoll_create1(EPOLL_CLOEXEC);
    int signal = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    struct epoll_event e = { .events = EPOLLIN };
    if (event < 0 || signal < 0 || timer < 0 || epoll_ctl(event, EPOLL_CTL_ADD, signal, &e) < 0 ||
        epoll_ctl(event, EPOLL_CTL_ADD, timer, &e) < 0) {
        int rc = -errno;
        int fds[] = { event, signal, timer };
        for (size_t i = 0; i < 3; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        return FAIL(w, rc, "", "event fd: %s", strerror(-rc));
    }
    w->event = event;
    w->signal = signal;
    w->timer = timer;
    w->now = clock_ns();
    if (w->ring != NULL) { /* what is in flight is sent again over the socket */
        fail_with(&w->lost, -WAL_DISCONNECTED, "", "the client goes over to the socket");
        w->drop = true;
        move_bytes(w, false);
    }
    update_event(w);
    return w->event;
}

/* ---- Questions ------------------------------------------------------------------------------------ */

static struct call *new_call(wal *w, enum type want, bool repeat, const char *name)
{
    struct call *k = calloc(1, sizeof *k);
    if (k == NULL) {
        FAIL(w, -ENOMEM, name, "no memory for a request");
        return NULL;
    }
    k->kind = ASKED;
    k->want = want;
    k->repeat = repeat;
    copy_text(k->name, sizeof k->name, name, strlen(name));
    return k;
}

static void free_call(struct call *k)
{
    free(k->body);
    free(k);
}

/* ask sends a question and waits for the answer, over a reconnect if need be. At 0 the
 * caller decodes the body and frees the call; else it is freed. */
static int ask(wal *w, struct call *k, int64_t deadline)
{
    if (w->ended != 0) {
        free_call(k);
        return remember(w, &w->end);
    }
    add_call(w, k);
    while (!k->answered) {
        if (clock_ns() >= deadline) {
            FAIL(w, -ETIMEDOUT, k->name, "no answer in time: %.300s", w->lost.message);
            w->last.outcome_unknown = k->id != 0;
            if (k->id != 0) {
                k->abandoned = true; /* the answer frees it */
                return -ETIMEDOUT;
            }
            struct call **at = &w->calls;
            while (*at != k)
                at = &(*at)->next;
            *at = k->next;
            free_call(k);
            return -ETIMEDOUT;
        }
        pump(w, deadline);
    }
    int rc = k->failure.code;
    if (rc != 0) {
        remember(w, &k->failure);
        free_call(k);
    }
    return rc;
}

static struct scan body_of(const struct call *k)
{
    return (struct scan){ .b = k->body, .n = k->header.length - HEADER_BYTES };
}

static int malformed(wal *w, const char *name)
{
    return FAIL(w, -WAL_INTERNAL, name, "the sidecar's answer is malformed");
}

static int ask_stream(wal *w, struct call *k, int64_t deadline, wal_stream_info *info)
{
    wal_stream_info scratch;
    int rc = ask(w, k, deadline);
    if (rc < 0)
        return rc;
    if (!decode_stream_info(&k->header, body_of(k), info != NULL ? info : &scratch))
        rc = malformed(w, k->name);
    free_call(k);
    return rc;
}

static int open_stream(wal *w, const char *stream, bool create, int64_t deadline, wal_stream_info *info)
{
    if (!good_name(stream))
        return FAIL(w, -WAL_BAD_REQUEST, "", "the name of a stream has 1 to 255 bytes");
    struct call *k = new_call(w, STREAM_INFO, true, stream);
    if (k == NULL)
        return -ENOMEM;
    k->size = encode_name(k->question, STREAM_OPEN, create ? FLAG_CREATE : 0, 0, stream);
    return ask_stream(w, k, deadline, info);
}

int wal_stream_create(wal *w, const char *stream, int timeout_ms, wal_stream_info *info)
{
    int rc = open_stream(w, stream, true, deadline_of(timeout_ms), info);
    update_event(w);
    return rc;
}

int wal_stream_stat(wal *w, const char *stream, int timeout_ms, wal_stream_info *info)
{
    int rc = open_stream(w, stream, false, deadline_of(timeout_ms), info);
    update_event(w);
    return rc;
}

/* by_id opens a stream and sends a command for its id. */
static int by_id(wal *w, const char *stream, enum type type, int timeout_ms, wal_stream_info *info)
{
    int64_t deadline = deadline_of(timeout_ms);
    wal_stream_info at;
    int rc = open_stream(w, stream, false, deadline, &at);
    if (rc < 0)
        return rc;
    struct call *k = new_call(w, STREAM_INFO, type == STREAM_SEAL, stream);
    if (k == NULL)
        return -ENOMEM;
    k->size = encode_numbers(k->question, type, 0, 0, &at.id, 1);
    rc = ask_stream(w, k, deadline, info);
    struct stream_ref *known = find_stream(w, stream);
    if (rc == 0 && type == STREAM_DELETE && known != NULL && known->id == at.id)
        forget_stream(w, known);
    return rc;
}

int wal_stream_seal(wal *w, const char *stream, int timeout_ms, wal_stream_info *info)
{
    int rc = by_id(w, stream, STREAM_SEAL, timeout_ms, info);
    update_event(w);
    return rc;
}

int wal_stream_delete(wal *w, const char *stream, int timeout_ms)
{
    int rc = by_id(w, stream, STREAM_DELETE, timeout_ms, NULL);
    update_event(w);
    return rc;
}

static int set_token(wal *w, const char *stream, const void *before, size_t before_bytes, const void *after,
                     size_t after_bytes, int64_t deadline)
{
    wal_stream_info at;
    if (before_bytes > WAL_MAX_TOKEN || after_bytes > WAL_MAX_TOKEN)
        return FAIL(w, -WAL_TOO_LARGE, "", "a token has at most %d bytes", WAL_MAX_TOKEN);
    int rc = open_stream(w, stream, false, deadline, &at);
    if (rc < 0)
        return rc;
    struct call *k = new_call(w, STREAM_INFO, false, stream);
    if (k == NULL)
        return -ENOMEM;
    k->size = encode_token(k->question, 0, at.id, before, before_bytes, after, after_bytes);
    return ask_stream(w, k, deadline, NULL);
}

int wal_stream_token(wal *w, const char *stream, const void *before, size_t before_bytes, const void *after,
                     size_t after_bytes, int timeout_ms)
{
    int rc = set_token(w, stream, before, before_bytes, after, after_bytes, deadline_of(timeout_ms));
    update_event(w);
    return rc;
}

static int trim(wal *w, const char *stream, uint64_t before, int64_t deadline, uint64_t *first)
{
    wal_stream_info at;
    int rc = open_stream(w, stream, false, deadline, &at);
    if (rc < 0)
        return rc;
    struct call *k = new_call(w, TRIMMED, true, stream);
    if (k == NULL)
        return -ENOMEM;
    uint64_t numbers[2] = { at.id, before };
    k->size = encode_numbers(k->question, STREAM_TRIM, 0, 0, numbers, 2);
    if ((rc = ask(w, k, deadline)) < 0)
        return rc;
    if (!decode_numbers(&k->header, body_of(k), numbers, 2))
        rc = malformed(w, stream);
    else if (first != NULL)
        *first = numbers[1];
    free_call(k);
    return rc;
}

int wal_trim(wal *w, const char *stream, uint64_t before, int timeout_ms, uint64_t *first)
{
    int rc = trim(w, stream, before, deadline_of(timeout_ms), first);
    update_event(w);
    return rc;
}

/* list_page takes one page into infos; next gets where the next one begins, "" for none. */
static int list_page(wal *w, const char *prefix, const char *after, int64_t deadline, wal_stream_info *infos,
                     size_t capacity, char *next)
{
    struct call *k = new_call(w, STREAM_PAGE, true, "");
    if (k == NULL)
        return -ENOMEM;
    uint32_t limit = capacity < MAX_STREAMS ? (uint32_t)capacity : MAX_STREAMS;
    k->size = encode_list(k->question, 0, limit, prefix, after);
    int rc = ask(w, k, deadline);
    if (rc < 0)
        return rc;
    uint32_t count;
    size_t next_bytes;
    struct scan s = body_of(k);
    bool well = decode_page(&k->header, &s, &count, &next_bytes) && count <= limit && next_bytes <= WAL_MAX_NAME;
    for (uint32_t i = 0; well && i < count; i++)
        well = decode_stream(&s, &infos[i]);
    if (well)
        text(&s, next_bytes, next, WAL_MAX_NAME + 1);
    well = well && done(&s);
    free_call(k);
    return well ? (int)count : malformed(w, "");
}

int wal_stream_list(wal *w, const char *prefix, const char *after, int timeout_ms, wal_stream_info *infos,
                    size_t capacity)
{
    int64_t deadline = deadline_of(timeout_ms);
    char at[WAL_MAX_NAME + 1];
    prefix = prefix != NULL ? prefix : "";
    after = after != NULL ? after : "";
    if (strlen(prefix) > WAL_MAX_NAME || strlen(after) > WAL_MAX_NAME || (infos == NULL && capacity > 0))
        return FAIL(w, -WAL_BAD_REQUEST, "", "list: longer than the name of a stream, or no place for the streams");
    copy_text(at, sizeof at, after, strlen(after));
    if (capacity > MAX_STREAMS)
        capacity = MAX_STREAMS; /* a log has no more */
    size_t n = 0;
    int rc = 0;
    while (n < capacity) {
        rc = list_page(w, prefix, at, deadline, infos + n, capacity - n, at);
        if (rc > 0)
            n += (size_t)rc;
        if (rc <= 0 || at[0] == 0)
            break;
    }
    update_event(w);
    return rc < 0 ? rc : (int)n;
}

/* ask_producer sends a ProducerOpen, a ProducerGet or a ProducerRemove. */
static int ask_producer(wal *w, enum type type, const char *producer, int timeout_ms, struct producer_info *info)
{
    if (!good_name(producer))
        return FAIL(w, -WAL_BAD_REQUEST, "", "the name of a producer has 1 to 255 bytes");
    struct call *k = new_call(w, PRODUCER_INFO, type != PRODUCER_REMOVE, producer);
    if (k == NULL)
        return -ENOMEM;
    if (type == PRODUCER_OPEN)
        k->size = encode_producer_open(k->question, 0, 0, producer);
    else if (type == PRODUCER_GET)
        k->size = encode_producer_get(k->question, 0, 0, producer);
    else
        k->size = encode_name(k->question, PRODUCER_REMOVE, 0, 0, producer);
    int rc = ask(w, k, deadline_of(timeout_ms));
    if (rc < 0)
        return rc;
    if (!decode_producer_info(&k->header, body_of(k), info))
        rc = malformed(w, "");
    free_call(k);
    return rc;
}

int wal_producer_get(wal *w, const char *producer, int timeout_ms, uint64_t *last_sequence)
{
    struct producer_info info;
    int rc = ask_producer(w, PRODUCER_GET, producer, timeout_ms, &info);
    if (rc == 0 && last_sequence != NULL)
        *last_sequence = info.last_sequence;
    update_event(w);
    return rc;
}

int wal_producer_open(wal *w, const char *producer, int timeout_ms, uint64_t *last_sequence)
{
    struct producer_info info;
    int rc = ask_producer(w, PRODUCER_OPEN, producer, timeout_ms, &info);
    if (rc == 0 && !learn_producer(w, producer, info.id))
        rc = FAIL(w, -ENOMEM, "", "no memory for the producer");
    if (rc == 0 && last_sequence != NULL)
        *last_sequence = info.last_sequence;
    update_event(w);
    return rc;
}

int wal_producer_remove(wal *w, const char *producer, int timeout_ms)
{
    struct producer_info info;
    int rc = ask_producer(w, PRODUCER_REMOVE, producer, timeout_ms, &info);
    if (rc == 0)
        forget_producers(w, producer);
    update_event(w);
    return rc;
}

int wal_ping(wal *w, int timeout_ms)
{
    uint64_t durable;
    struct call *k = new_call(w, PONG, true, "");
    if (k == NULL)
        return -ENOMEM;
    k->size = encode_numbers(k->question, PING, 0, 0, NULL, 0);
    int rc = ask(w, k, deadline_of(timeout_ms));
    if (rc == 0) {
        if (decode_numbers(&k->header, body_of(k), &durable, 1))
            saw_durable(w, durable);
        else
            rc = malformed(w, "");
        free_call(k);
    }
    update_event(w);
    return rc;
}

int wal_status(wal *w, int timeout_ms, char *json, size_t capacity)
{
    const unsigned char *found;
    size_t n;
    struct call *k = new_call(w, STATUS_JSON, true, "");
    if (k == NULL)
        return -ENOMEM;
    k->size = encode_numbers(k->question, STATUS, 0, 0, NULL, 0);
    int rc = ask(w, k, deadline_of(timeout_ms));
    if (rc == 0) {
        if (!decode_status(&k->header, body_of(k), &found, &n))
            rc = malformed(w, "");
        else if (n >= capacity)
            rc = FAIL(w, -ENOBUFS, "", "status: it has %zu bytes", n);
        else {
            copy_text(json, capacity, found, n);
            rc = (int)n;
        }
        free_call(k);
    }
    update_event(w);
    return rc;
}

/* ---- Read ------------------------------------------------------------------------------------------ */

static int new_read(wal *w, const wal_read_opts *opts, wal_read **out)
{
    wal_read_opts o;
    if (out == NULL)
        return FAIL(w, -EINVAL, "", "read: no place for the handle");
    *out = NULL;
    int rc = take_struct(&o, sizeof o, opts);
    if (rc < 0 || o.from < WAL_FROM_FIRST || o.from > WAL_FROM_LAST)
        return FAIL(w, rc < 0 ? rc : -EINVAL, "", "read: bad size of the options, or unknown start");
    if (w->ended != 0)
        return remember(w, &w->end);
    wal_read *r = calloc(1, sizeof *r);
    if (r == NULL)
        return FAIL(w, -ENOMEM, "", "read: no memory for the handle");
    r->w = w;
    r->state = READ_ASK;
    r->follow = o.follow != 0;
    r->caught_up = o.caught_up != 0 && r->follow;
    r->start = o.from;
    r->value = o.value;
    r->limit = o.limit;
    r->read_ahead = o.read_ahead > 0 ? o.read_ahead : WAL_DEFAULT_READ_AHEAD;
    if (r->read_ahead > UINT32_MAX)
        r->read_ahead = UINT32_MAX;
    if (r->start == WAL_FROM_FIRST)
        r->value = 0;
    *out = r;
    return 0;
}

static void start_read(wal *w, wal_read *r)
{
    wal_read **at = &w->reads;
    while (*at != NULL)
        at = &(*at)->next;
    *at = r;
    w->now = clock_ns();
    run_reads(w);
    update_event(w);
}

int wal_read_open(wal *w, const char *stream, const wal_read_opts *opts, int timeout_ms, wal_read **out)
{
    wal_stream_info info;
    int rc = new_read(w, opts, out);
    if (rc < 0)
        return rc;
    wal_read *r = *out;
    *out = NULL;
    if ((rc = open_stream(w, stream, false, deadline_of(timeout_ms), &info)) < 0) {
        free(r);
        update_event(w);
        return rc;
    }
    r->stream_id = info.id;
    copy_text(r->stream, sizeof r->stream, stream, strlen(stream));
    start_read(w, r);
    *out = r;
    return 0;
}

int wal_replay_open(wal *w, uint64_t position, const wal_read_opts *opts, wal_read **out)
{
    int rc = new_read(w, opts, out);
    if (rc < 0)
        return rc;
    (*out)->replay = true;
    (*out)->start = WAL_FROM_OFFSET;
    (*out)->value = position;
    start_read(w, *out);
    return 0;
}

/* control sends a Credit or Cancel of a read that the sidecar still serves. */
static void control(wal_read *r, enum type type, const uint64_t *number)
{
    unsigned char message[HEADER_BYTES + 8];
    if (r->state != READ_OPEN || r->w->state != UP)
        return;
    if (put_message(r->w, message, encode_numbers(message, type, 0, r->id, number, number != NULL ? 1 : 0)) < 0)
        out_of_memory(r->w);
}

void wal_read_close(wal_read *r)
{
    if (r == NULL)
        return;
    wal *w = r->w;
    drop_arrived(r);
    r->closed = true;
    if (r->state != READ_OPEN || w->state != UP)
        free_read(r);
    else if (r->failure.code == 0) /* else it was cancelled before */
        control(r, CANCEL, NULL);
    update_event(w);
}

/* fail_read ends a read because of what came. */
static int fail_read(wal_read *r, int code, const char *message)
{
    fail_with(&r->failure, code, r->stream, "read: %s", message);
    drop_arrived(r);
    control(r, CANCEL, NULL);
    return code;
}

/* passed notes how far a replay got. */
static bool passed(wal_read *r, const wal_item *item)
{
    if (item->batch_end || item->position != r->value) {
        if (r->partial.count > 0)
            map_clear(&r->partial);
        r->cut = 0;
    }
    if (item->batch_end) {
        r->value = item->position + 8; /* the unit of positions */
        return true;
    }
    r->value = item->position;
    r->cut++;
    struct slot *s = map_add(&r->partial, item->stream_id);
    if (s != NULL)
        s->value = item->offset;
    return s != NULL;
}

static const char *name_in_replay(const wal_read *r, uint64_t stream)
{
    const struct slot *s = map_find(&r->names, stream);
    return s != NULL && s->name != NULL ? s->name : "";
}

/* take_record gives out the next record of the current message: its kind, 0 where it
 * was given out before the connection was lost, or an error. */
static int take_record(wal_read *r, wal_item *item)
{
    uint64_t checksum;
    r->left--;
    if (!decode_record(&r->scan, item, &checksum) || (r->left == 0 && !done(&r->scan)))
        return fail_read(r, -WAL_INTERNAL, "the sidecar's records are malformed");
    if (record_checksum(item) != checksum)
        return fail_read(r, -WAL_INTERNAL, "a record does not match its checksum");
    if (r->replay) {
        const struct slot *last = map_find(&r->partial, item->stream_id);
        if (last != NULL && item->position == r->value && item->offset <= last->value)
            return 0;
        item->stream = name_in_replay(r, item->stream_id);
        if (!passed(r, item))
            return fail_read(r, -ENOMEM, "no memory");
    } else {
        if (r->began && item->offset != r->value)
            return fail_read(r, -WAL_INTERNAL, "a record came where another one was due");
        item->stream = r->stream;
        r->start = WAL_FROM_OFFSET;
        r->value = item->offset + 1;
    }
    r->began = true;
    r->count++;
    item->kind = WAL_RECORD;
    return WAL_RECORD;
}

/* take_gap gives out a gap, unless it is where the read begins or ends anyway. */
static int take_gap(wal_read *r, wal_item *item)
{
    if (!decode_gap(&r->current->header, r->scan, item))
        return fail_read(r, -WAL_INTERNAL, "the sidecar's gap is malformed");
    bool first = !r->began && r->start == WAL_FROM_FIRST;
    bool ends = item->gap == WAL_GAP_SEALED || item->gap == WAL_GAP_DELETED;
    if (!ends && (!r->replay || item->stream_id == 0)) {
        r->start = WAL_FROM_OFFSET;
        r->value = item->to;
        r->began = true;
    }
    if ((first && item->gap == WAL_GAP_TRIMMED) || (item->gap == WAL_GAP_SEALED && !r->follow))
        return 0;
    item->stream = r->replay ? name_in_replay(r, item->stream_id) : r->stream;
    item->kind = WAL_GAP;
    return WAL_GAP;
}

/* begin_message makes the next message that came the current one. */
static int begin_message(wal_read *r)
{
    struct arrived *a = r->first;
    r->first = a->next;
    if (r->first == NULL)
        r->last = NULL;
    r->current = a;
    r->scan = (struct scan){ .b = a->body, .n = a->header.length - HEADER_BYTES };
    r->left = 1;
    if (a->header.type == GAP || a->header.type == CAUGHT_UP)
        return 0;
    uint32_t names;
    if ((a->header.type == REPLAY_BATCHES) != r->replay || !decode_batches(&a->header, &r->scan, &r->left, &names) ||
        (r->left == 0 && names == 0 && !done(&r->scan)))
        return fail_read(r, -WAL_INTERNAL, "the sidecar's records are malformed");
    for (uint32_t i = 0; i < names; i++) {
        uint64_t stream;
        const unsigned char *name;
        size_t n;
        if (!decode_stream_name(&r->scan, &stream, &name, &n) || n > WAL_MAX_NAME || r->names.count > 4 * MAX_STREAMS)
            return fail_read(r, -WAL_INTERNAL, "the sidecar's names are malformed");
        struct slot *s = map_add(&r->names, stream);
        if (s != NULL) {
            free(s->name);
            s->name = strndup((const char *)name, n);
        }
        if (s == NULL || s->name == NULL)
            return fail_read(r, -ENOMEM, "no memory");
    }
    return 0;
}

/* end_message grants what the current message took, once it was given out. */
static void end_message(wal_read *r)
{
    size_t n = r->current->header.length;
    bool counts = r->current->header.type == RECORDS || r->current->header.type == REPLAY_BATCHES;
    r->waiting -= n;
    free(r->current);
    r->current = NULL;
    if (!counts)
        return;
    r->consumed += n;
    if (r->consumed < (r->read_ahead + 1) / 2)
        return;
    uint64_t credit = r->consumed;
    r->consumed = 0;
    control(r, CREDIT, &credit);
}

/* take_item gives out what is there: its kind, 0 if there is nothing, or an error. */
static int take_item(wal_read *r, wal_item *item)
{
    int rc = 0;
    while (rc == 0 && r->failure.code == 0) {
        if (r->current != NULL && r->left == 0)
            end_message(r);
        if (r->current == NULL) {
            if (r->first == NULL)
                return 0;
            if ((rc = begin_message(r)) < 0)
                return rc;
            continue;
        }
        memset(item, 0, sizeof *item);
        item->stream = r->stream;
        if (r->current->header.type == GAP) {
            r->left = 0;
            rc = take_gap(r, item);
        } else if (r->current->header.type == CAUGHT_UP) {
            uint64_t marks[2];
            decode_numbers(&r->current->header, r->scan, marks, 2); /* checked when it came */
            r->left = 0;
            item->kind = rc = WAL_CAUGHT_UP;
            item->next = marks[1];
        } else {
            rc = take_record(r, item);
        }
    }
    return rc;
}

int wal_next(wal_read *r, int timeout_ms, wal_item *item)
{
    wal *w = r->w;
    int64_t deadline = deadline_of(timeout_ms);
    int rc;
    for (;;) {
        rc = take_item(r, item);
        if (rc > 0)
            break;
        if (r->failure.code != 0) {
            rc = remember(w, &r->failure);
            r->end_told = true;
            break;
        }
        if (r->state == READ_ENDED) {
            r->end_told = true;
            rc = WAL_END;
            break;
        }
        if (timeout_ms == 0) {
            rc = FAIL(w, -EAGAIN, r->stream, "read: nothing has come yet");
            break;
        }
        if (clock_ns() >= deadline) {
            rc = FAIL(w, -ETIMEDOUT, r->stream, "read: nothing came in time: %.300s", w->lost.message);
            break;
        }
        pump(w, deadline);
    }
    update_event(w);
    return rc;
}

int wal_header_next(const wal_item *item, size_t *cursor, wal_header *header)
{
    struct scan s = { .b = item->headers, .n = item->header_bytes, .at = *cursor > 0 ? *cursor : 2 };
    if (s.at >= s.n)
        return 0;
    size_t key = get16(&s), value = get32(&s);
    const unsigned char *key_at = take(&s, key), *value_at = take(&s, value);
    if (s.bad)
        return 0;
    *header = (wal_header){ (const char *)key_at, key, value_at, value };
    *cursor = s.at;
    return 1;
}

int wal_header_get(const wal_item *item, const char *key, const void **value, size_t *value_bytes)
{
    wal_header h;
    for (size_t cursor = 0; wal_header_next(item, &cursor, &h) == 1;)
        if (h.key_bytes == strlen(key) && memcmp(h.key, key, h.key_bytes) == 0) {
            *value = h.value;
            *value_bytes = h.value_bytes;
            return 1;
        }
    return 0;
}
