/* test_sidecar PROGRAM socket|shm [NAME…]: the client against real sidecars, each a process
 * of its own on a new log with the store none, through one door. NAME picks tests. */
#define _GNU_SOURCE
#include "../walsidecar.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>

#include "check.h"

enum { PATIENCE_MS = 60000 };

static const char *program;
static int door; /* of enum wal_door */

/* sidecar is one process on a log of its own. */
struct sidecar {
    char directory[64], socket[96];
    const char *wal_size;
    pid_t pid;
};

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void pause_ms(long ms) { nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL); }

static void start(struct sidecar *s)
{
    char wal[128], log[128];
    snprintf(wal, sizeof wal, "%s/wal", s->directory);
    snprintf(log, sizeof log, "%s/log", s->directory);
    s->pid = fork();
    if (s->pid != 0)
        return;
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(fd, 2);
    dup2(fd, 1);
    setenv("WALSIDECAR_WAL", wal, 1);
    setenv("WALSIDECAR_WAL_SIZE", s->wal_size, 1);
    setenv("WALSIDECAR_SOCKET", s->socket, 1);
    setenv("WALSIDECAR_STORE", "none", 1);
    setenv("WALSIDECAR_ADMIN", "off", 1);
    execl(program, program, "serve", (char *)NULL);
    _exit(127);
}

/* A small log is soon full; a large one holds what a test of a second writes that never
 * trims, in frames of one block. */
static void new_sidecar(struct sidecar *s, bool large)
{
    s->wal_size = large ? "256MiB" : "32MiB";
    snprintf(s->directory, sizeof s->directory, "/tmp/walsidecar-c-XXXXXX");
    if (mkdtemp(s->directory) == NULL) {
        perror(s->directory);
        exit(1);
    }
    snprintf(s->socket, sizeof s->socket, "%s/s", s->directory);
    start(s);
}

/* stop_sidecar returns once no thread of it runs any more. */
static void stop_sidecar(struct sidecar *s)
{
    int status;
    kill(s->pid, SIGSTOP);
    CHECK(waitpid(s->pid, &status, WUNTRACED) == s->pid && WIFSTOPPED(status), "not stopped");
}

static void kill_sidecar(struct sidecar *s)
{
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
}

static void end_sidecar(struct sidecar *s)
{
    char command[128];
    kill_sidecar(s);
    snprintf(command, sizeof command, "rm -rf '%s'", s->directory);
    if (system(command) != 0)
        failures++;
}

/* dial connects as soon as the sidecar is there. */
static wal *dial(const struct sidecar *s, const wal_opts *opts)
{
    wal *w = NULL;
    wal_opts chosen = { .size = sizeof chosen };
    if (opts != NULL)
        chosen = *opts;
    chosen.door = door;
    opts = &chosen;
    double until = seconds_now() + PATIENCE_MS / 1000;
    int rc = -1;
    while (rc < 0 && seconds_now() < until) {
        rc = wal_open(&w, s->socket, opts);
        if (rc < 0)
            pause_ms(10);
    }
    if (rc < 0) {
        fprintf(stderr, "no sidecar: %s\n", wal_strerror(rc));
        exit(1);
    }
    wal_log_info info;
    wal_get_log_info(w, &info);
    CHECK(info.shared_memory == (door == WAL_DOOR_SHM), "shared memory: %d", info.shared_memory);
    return w;
}

/* must fails the test unless a call succeeded. */
#define MUST(w, call)                                                                      \
    do {                                                                                   \
        int must_rc = (call);                                                              \
        CHECK(must_rc >= 0, "%s (%s)", wal_strerror(must_rc), wal_last_error(w)->message); \
    } while (0)

#define REFUSED(w, call, want)                                                                     \
    do {                                                                                           \
        int refused_rc = (call);                                                                   \
        CHECK(refused_rc == (want), "%d, %s", refused_rc, wal_strerror(refused_rc));               \
        CHECK(wal_last_error(w)->code == refused_rc, "last error is %d", wal_last_error(w)->code); \
    } while (0)

static wal_append_opts append_opts(void) { return (wal_append_opts){ .size = sizeof(wal_append_opts) }; }

/* check_numbers reads a stream whose records are the numbers from 0 to n. */
static void check_numbers(wal *w, const char *stream, uint64_t n)
{
    wal_read *r;
    wal_item item;
    int rc;
    uint64_t next = 0;
    char want[32];
    MUST(w, wal_read_open(w, stream, NULL, PATIENCE_MS, &r));
    if (r == NULL)
        return;
    while ((rc = wal_next(r, PATIENCE_MS, &item)) == WAL_RECORD) {
        int bytes = snprintf(want, sizeof want, "%" PRIu64, next);
        CHECK(item.offset == next && item.data_bytes == (size_t)bytes && memcmp(item.data, want, item.data_bytes) == 0,
              "%s: offset %" PRIu64 " has %.*s", stream, item.offset, (int)item.data_bytes, (const char *)item.data);
        next++;
    }
    CHECK(rc == WAL_END && next == n, "%s: %s, %" PRIu64 " records, not %" PRIu64, stream, wal_strerror(rc), next, n);
    wal_read_close(r);
}

/* ---- One client and one sidecar ------------------------------------------------------- */

static void append_read_replay(struct sidecar *s)
{
    wal *w = dial(s, NULL);
    wal_result a, b;
    wal_header headers[2] = { { "type", 0, "order", 5 }, { "type", 0, "", 0 } };
    wal_append_opts o = append_opts();
    o.headers = headers;
    o.header_count = 2;
    MUST(w, wal_append(w, "orders", "first", 5, NULL, PATIENCE_MS, &a));
    MUST(w, wal_append(w, "orders", "second", 6, &o, PATIENCE_MS, &b));
    MUST(w, wal_append(w, "empty", NULL, 0, NULL, PATIENCE_MS, NULL));
    CHECK(a.offset == 0 && b.offset == 1 && b.position > a.position && a.placed == NULL, "%" PRIu64, b.offset);
    CHECK(wal_durable(w) >= b.position, "durable %" PRIu64, wal_durable(w));

    wal_read *r;
    wal_item item;
    wal_header h;
    size_t cursor = 0, bytes;
    const void *value;
    MUST(w, wal_read_open(w, "orders", NULL, PATIENCE_MS, &r));
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_RECORD && item.data_bytes == 5 && memcmp(item.data, "first", 5) == 0, "first");
    CHECK(item.position == a.position && item.batch_end && item.header_bytes == 0 && strcmp(item.stream, "orders") == 0, "first");
    CHECK(wal_header_next(&item, &cursor, &h) == 0, "a header where there is none");
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_RECORD && item.offset == 1, "second");
    CHECK(wal_header_get(&item, "type", &value, &bytes) == 1 && bytes == 5 && memcmp(value, "order", 5) == 0, "header");
    CHECK(wal_header_get(&item, "typ", &value, &bytes) == 0, "a header that is not there");
    CHECK(wal_header_next(&item, &cursor, &h) == 1 && wal_header_next(&item, &cursor, &h) == 1 && h.value_bytes == 0, "headers");
    CHECK(wal_header_next(&item, &cursor, &h) == 0, "a third header");
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_END && wal_next(r, 0, &item) == WAL_END, "end");
    wal_read_close(r);

    wal_read_opts last = { .size = sizeof last, .from = WAL_FROM_LAST, .value = 1 };
    MUST(w, wal_read_open(w, "orders", &last, PATIENCE_MS, &r));
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_RECORD && item.offset == 1, "last one");
    wal_read_opts since = { .size = sizeof since, .from = WAL_FROM_TIME, .value = (uint64_t)item.timestamp_ns + 1000000000 };
    wal_read_close(r);
    MUST(w, wal_read_open(w, "orders", &since, PATIENCE_MS, &r));
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_END, "nothing is from the future");
    wal_read_close(r);

    const char *want[] = { "first", "second", "" };
    const char *streams[] = { "orders", "orders", "empty" };
    MUST(w, wal_replay_open(w, 0, NULL, &r));
    for (int i = 0; i < 3; i++)
        CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_RECORD && item.data_bytes == strlen(want[i]) &&
                  memcmp(item.data, want[i], item.data_bytes) == 0 && strcmp(item.stream, streams[i]) == 0, "replay %d", i);
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_END, "end of replay");
    wal_read_close(r);
    wal_read_opts one = { .size = sizeof one, .limit = 1 };
    MUST(w, wal_replay_open(w, b.position, &one, &r));
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_RECORD && item.position == b.position, "replay from the second");
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_END, "limit");
    REFUSED(w, wal_read_open(w, "nothing", NULL, PATIENCE_MS, &r), -WAL_NOT_FOUND);
    wal_close(w);
}

static void batches_and_conditions(struct sidecar *s)
{
    wal *w = dial(s, NULL);
    wal_result r;
    wal_entry e[3] = { { .stream = "a", .data = "0", .data_bytes = 1, .has_expect = 1 },
                       { .stream = "b", .data = "1", .data_bytes = 1 },
                       { .stream = "a", .data = "2", .data_bytes = 1 } };
    MUST(w, wal_append_batch(w, e, 3, NULL, PATIENCE_MS, &r));
    CHECK(r.placed_count == 2 && r.placed[0].entry == 0 && r.placed[0].count == 2 && r.placed[1].entry == 1 &&
              r.placed[1].count == 1 && r.placed[1].first == 0, "%zu places", r.placed_count);
    e[0].expect = 1;
    REFUSED(w, wal_append_batch(w, e, 3, NULL, PATIENCE_MS, &r), -WAL_PRECONDITION_FAILED);
    const wal_error *error = wal_last_error(w);
    CHECK(error->entry == 0 && error->has_actual && error->actual == 2 && !error->outcome_unknown && !error->retriable,
          "entry %d, actual %" PRIu64, (int)error->entry, error->actual);
    CHECK(r.error == -WAL_PRECONDITION_FAILED, "%d", r.error);
    wal_append_opts o = append_opts();
    o.has_expect = 1;
    o.expect = 2;
    MUST(w, wal_append(w, "a", "3", 1, &o, PATIENCE_MS, &r));
    CHECK(r.offset == 2, "%" PRIu64, r.offset);
    wal_entry same[2] = { { .stream = "b" }, { .stream = "b" } };
    MUST(w, wal_append_batch(w, same, 2, NULL, PATIENCE_MS, &r));
    CHECK(r.placed_count == 1 && r.placed[0].first == 1 && r.placed[0].count == 2, "%zu", r.placed_count);

    MUST(w, wal_stream_token(w, "a", "", 0, "mine", 4, PATIENCE_MS));
    REFUSED(w, wal_append(w, "a", "x", 1, NULL, PATIENCE_MS, NULL), -WAL_TOKEN_MISMATCH);
    REFUSED(w, wal_stream_token(w, "a", "yours", 5, "", 0, PATIENCE_MS), -WAL_TOKEN_MISMATCH);
    wal_append_opts token = append_opts();
    token.token = "mine";
    token.token_bytes = 4;
    MUST(w, wal_append(w, "a", "x", 1, &token, PATIENCE_MS, &r));
    wal_append_opts exists = append_opts();
    exists.must_exist = 1;
    REFUSED(w, wal_append(w, "missing", "x", 1, &exists, PATIENCE_MS, NULL), -WAL_NOT_FOUND);
    CHECK(strcmp(wal_last_error(w)->stream, "missing") == 0, "%s", wal_last_error(w)->stream);
    wal_close(w);
}

static void bad_requests(struct sidecar *s)
{
    wal *w = dial(s, NULL);
    wal_append_opts o = append_opts();
    wal_header headers[65];
    for (int i = 0; i < 65; i++)
        headers[i] = (wal_header){ "k", 0, "v", 1 };
    o.headers = headers;
    o.header_count = 65;
    REFUSED(w, wal_append(w, "a", "x", 1, &o, PATIENCE_MS, NULL), -WAL_TOO_LARGE);
    o.header_count = 64;
    MUST(w, wal_append(w, "a", "x", 1, &o, PATIENCE_MS, NULL));
    headers[0].key = "";
    REFUSED(w, wal_append(w, "a", "x", 1, &o, PATIENCE_MS, NULL), -WAL_BAD_REQUEST);
    headers[0] = (wal_header){ "\xff\xfe", 0, "v", 1 }; /* not UTF-8: the sidecar refuses it */
    REFUSED(w, wal_append(w, "a", "x", 1, &o, PATIENCE_MS, NULL), -WAL_BAD_REQUEST);
    REFUSED(w, wal_append(w, "", "x", 1, NULL, PATIENCE_MS, NULL), -WAL_BAD_REQUEST);
    REFUSED(w, wal_append(w, "/a", "x", 1, NULL, PATIENCE_MS, NULL), -WAL_BAD_REQUEST);
    REFUSED(w, wal_append_batch(w, NULL, 0, NULL, PATIENCE_MS, NULL), -WAL_BAD_REQUEST);
    REFUSED(w, wal_append(w, "a", NULL, 1, NULL, PATIENCE_MS, NULL), -EINVAL);

    static unsigned char large[2 << 20];
    for (size_t i = 0; i < sizeof large; i++)
        large[i] = (unsigned char)(i * 31);
    wal_log_info info;
    wal_get_log_info(w, &info);
    size_t fits = info.max_batch_bytes - 8 - 24 - 40;
    fits -= fits % 8;
    REFUSED(w, wal_append(w, "a", large, fits + 8, NULL, PATIENCE_MS, NULL), -WAL_TOO_LARGE);
    REFUSED(w, wal_append(w, "a", large, sizeof large, NULL, PATIENCE_MS, NULL), -WAL_TOO_LARGE);
    MUST(w, wal_append(w, "a", large, fits, NULL, PATIENCE_MS, NULL));
    wal_read_opts last = { .size = sizeof last, .from = WAL_FROM_LAST, .value = 1, .read_ahead = 1 };
    wal_read *r;
    wal_item item;
    MUST(w, wal_read_open(w, "a", &last, PATIENCE_MS, &r));
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_RECORD && item.data_bytes == fits && memcmp(item.data, large, fits) == 0,
          "the largest record");
    wal_read_close(r);

    struct { wal_append_opts o; uint64_t more; } newer = { .o = append_opts() };
    newer.o.size = sizeof newer;
    MUST(w, wal_append(w, "a", "x", 1, &newer.o, PATIENCE_MS, NULL));
    newer.more = 1;
    REFUSED(w, wal_append(w, "a", "x", 1, &newer.o, PATIENCE_MS, NULL), -E2BIG);
    wal_append_opts older = append_opts(); /* of a header without callbacks */
    older.size = offsetof(wal_append_opts, producer);
    MUST(w, wal_append(w, "a", "x", 1, &older, PATIENCE_MS, NULL));
    wal_ticket none = 12345;
    REFUSED(w, wal_wait(w, none, 0, NULL), -ESTALE);
    wal_close(w);

    wal *no = w;
    char why[256];
    wal_opts bad = { .size = sizeof bad, .log = "other-node", .error_text = why, .error_text_bytes = sizeof why };
    CHECK(wal_open(&no, s->socket, &bad) == -WAL_WRONG_LOG && no == NULL && why[0] != 0, "wrong log: %s", why);
    CHECK(wal_open(&no, "/nonexistent/s", &bad) == -WAL_DISCONNECTED && strstr(why, "/nonexistent/s") != NULL, "%s", why);
    char path[200];
    memset(path, 'a', sizeof path);
    path[sizeof path - 1] = 0;
    CHECK(wal_open(&no, path, NULL) == -EINVAL, "a path that is too long");
}

static void producers(struct sidecar *s)
{
    wal *w = dial(s, NULL);
    wal_append_opts o = append_opts();
    wal_result r;
    uint64_t last;
    o.producer = "postgres";
    o.sequence = 100;
    REFUSED(w, wal_producer_get(w, "postgres", PATIENCE_MS, &last), -WAL_NOT_FOUND);
    MUST(w, wal_append(w, "a", "x", 1, &o, PATIENCE_MS, &r));
    CHECK(!r.duplicate && r.offset == 0, "%" PRIu64, r.offset);
    o.sequence = 99;
    MUST(w, wal_append(w, "a", "x", 1, &o, PATIENCE_MS, &r));
    CHECK(r.duplicate && r.last_sequence == 100, "last %" PRIu64, r.last_sequence);
    o.sequence = UINT64_C(1) << 60;
    MUST(w, wal_append(w, "a", "y", 1, &o, PATIENCE_MS, &r));
    CHECK(!r.duplicate && r.offset == 1, "%" PRIu64, r.offset);
    MUST(w, wal_producer_get(w, "postgres", PATIENCE_MS, &last));
    CHECK(last == UINT64_C(1) << 60, "%" PRIu64, last);

    /* Another client takes it over; what this one still sends is refused. */
    wal *other = dial(s, NULL);
    MUST(other, wal_producer_open(other, "postgres", PATIENCE_MS, &last));
    CHECK(last == UINT64_C(1) << 60, "%" PRIu64, last);
    o.sequence = (UINT64_C(1) << 60) + 1;
    REFUSED(w, wal_append(w, "a", "late", 4, &o, PATIENCE_MS, NULL), -WAL_PRODUCER_EXPIRED);
    wal_close(other);
    MUST(w, wal_producer_open(w, "postgres", PATIENCE_MS, NULL));
    MUST(w, wal_producer_remove(w, "postgres", PATIENCE_MS));
    REFUSED(w, wal_producer_remove(w, "postgres", PATIENCE_MS), -WAL_NOT_FOUND);
    o.sequence = 1;
    MUST(w, wal_append(w, "a", "z", 1, &o, PATIENCE_MS, &r));
    CHECK(r.offset == 2, "%" PRIu64, r.offset);
    wal_close(w);
}

static void stream_life(struct sidecar *s)
{
    wal *w = dial(s, NULL);
    wal_stream_info info, again;
    uint64_t first;
    MUST(w, wal_stream_create(w, "größe", PATIENCE_MS, &info));
    CHECK((info.flags & WAL_STREAM_CREATED) != 0 && strcmp(info.name, "größe") == 0 && info.created_ns > 0, "%s", info.name);
    MUST(w, wal_stream_create(w, "größe", PATIENCE_MS, &again));
    CHECK(again.id == info.id && (again.flags & WAL_STREAM_CREATED) == 0, "%" PRIu64, again.id);
    for (int i = 0; i < 5; i++)
        MUST(w, wal_append(w, "größe", "x", 1, NULL, PATIENCE_MS, NULL));
    MUST(w, wal_trim(w, "größe", 3, PATIENCE_MS, &first));
    CHECK(first == 3, "%" PRIu64, first);
    MUST(w, wal_trim(w, "größe", 1, PATIENCE_MS, &first));
    CHECK(first == 3, "%" PRIu64, first);

    wal_read *r;
    wal_item item;
    wal_read_opts from = { .size = sizeof from, .from = WAL_FROM_OFFSET, .value = 1, .follow = 1, .caught_up = 1 };
    MUST(w, wal_read_open(w, "größe", &from, PATIENCE_MS, &r));
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_GAP && item.gap == WAL_GAP_TRIMMED && item.from == 1 && item.to == 3, "gap");
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_RECORD && item.offset == 3, "3");
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_RECORD && item.offset == 4, "4");
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_CAUGHT_UP && item.next == 5, "%" PRIu64, item.next);
    CHECK(wal_next(r, 0, &item) == -EAGAIN && wal_next(r, 20, &item) == -ETIMEDOUT, "nothing more");
    MUST(w, wal_stream_seal(w, "größe", PATIENCE_MS, &info));
    CHECK((info.flags & WAL_STREAM_SEALED) != 0 && info.first_offset == 3 && info.next_offset == 5, "%u", info.flags);
    int rc;
    while ((rc = wal_next(r, PATIENCE_MS, &item)) == WAL_CAUGHT_UP)
        continue;
    CHECK(rc == WAL_GAP && item.gap == WAL_GAP_SEALED, "%d", rc);
    CHECK(wal_next(r, PATIENCE_MS, &item) == WAL_END, "end of a sealed stream");
    wal_read_close(r);
    REFUSED(w, wal_append(w, "größe", "x", 1, NULL, PATIENCE_MS, NULL), -WAL_SEALED);
    MUST(w, wal_stream_delete(w, "größe", PATIENCE_MS));
    REFUSED(w, wal_stream_stat(w, "größe", PATIENCE_MS, NULL), -WAL_NOT_FOUND);
    MUST(w, wal_append(w, "größe", "x", 1, NULL, PATIENCE_MS, NULL));
    MUST(w, wal_stream_stat(w, "größe", PATIENCE_MS, &again));
    CHECK(again.id != info.id && again.next_offset == 1, "%" PRIu64, again.next_offset);
    MUST(w, wal_ping(w, PATIENCE_MS));
    static char json[1 << 20];
    int n = wal_status(w, PATIENCE_MS, json, sizeof json);
    CHECK(n > 2 && json[0] == '{' && strlen(json) == (size_t)n, "%d bytes", n);
    REFUSED(w, wal_status(w, PATIENCE_MS, json, 2), -ENOBUFS);
    wal_close(w);
}

static void list_in_pages(struct sidecar *s)
{
    wal *w = dial(s, NULL);
    enum { STREAMS = 700 };
    static wal_stream_info infos[STREAMS + 10];
    char name[256];
    for (int i = 0; i < STREAMS; i++) { /* long names, so that a page of the protocol is not enough */
        snprintf(name, sizeof name, "list/%0200d", i);
        MUST(w, wal_stream_create(w, name, PATIENCE_MS, NULL));
    }
    MUST(w, wal_stream_create(w, "other", PATIENCE_MS, NULL));
    int n = wal_stream_list(w, "list/", NULL, PATIENCE_MS, infos, STREAMS + 10);
    CHECK(n == STREAMS, "%d streams: %s", n, n < 0 ? wal_strerror(n) : "");
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "list/%0200d", i);
        CHECK(strcmp(infos[i].name, name) == 0, "%s", infos[i].name);
    }
    char after[256] = "";
    int total = 0;
    while ((n = wal_stream_list(w, NULL, after, PATIENCE_MS, infos, 99)) > 0) {
        total += n;
        memcpy(after, infos[n - 1].name, sizeof after);
    }
    CHECK(n == 0 && total == STREAMS + 1, "%d streams in pages: %s", total, wal_strerror(n));
    wal_close(w);
}

static void tickets(struct sidecar *s)
{
    wal *w = dial(s, NULL);
    enum { RECORDS = 500 };
    wal_ticket t[RECORDS];
    wal_result r;
    char text[16];
    for (int i = 0; i < RECORDS; i++)
        MUST(w, wal_submit(w, "t", text, (size_t)snprintf(text, sizeof text, "%d", i), NULL, PATIENCE_MS, &t[i]));
    for (int i = RECORDS - 1; i >= RECORDS / 2; i--) { /* in any order */
        MUST(w, wal_wait(w, t[i], PATIENCE_MS, &r));
        CHECK(r.offset == (uint64_t)i, "%" PRIu64 " for %d", r.offset, i);
        REFUSED(w, wal_wait(w, t[i], PATIENCE_MS, &r), -ESTALE);
    }
    MUST(w, wal_flush(w, PATIENCE_MS));
    REFUSED(w, wal_wait(w, t[0], PATIENCE_MS, &r), -ESTALE);
    wal_append_opts o = append_opts();
    o.has_expect = 1;
    MUST(w, wal_submit(w, "t", "x", 1, NULL, PATIENCE_MS, &t[0]));
    MUST(w, wal_submit(w, "t", "x", 1, &o, PATIENCE_MS, &t[1]));
    REFUSED(w, wal_flush(w, PATIENCE_MS), -WAL_PRECONDITION_FAILED);
    CHECK(wal_last_error(w)->actual == RECORDS + 1, "%" PRIu64, wal_last_error(w)->actual);
    MUST(w, wal_flush(w, 0));
    CHECK(wal_in_flight(w) == 0, "%zu in flight", wal_in_flight(w));
    wal_close(w);
}

/* ---- Event loops --------------------------------------------------------------------------- */

struct counts {
    uint64_t submitted, durable, refused, unknown;
    uint64_t sum; /* of the offsets */
    bool in_order;
    uint64_t next;
};

static void count(wal *w, wal_ticket ticket, const wal_result *r, void *opaque)
{
    struct counts *n = opaque;
    bool unknown = r->error != 0 && wal_last_error(w)->outcome_unknown;
    CHECK(ticket != 0, "no ticket");
    CHECK(wal_poll(w, 0) == -EDEADLK && wal_close(w) == -EDEADLK, "allowed inside a callback");
    if (r->error == 0) {
        n->durable++;
        /* Where a connection was lost, answers over the socket and acks in shared memory
         * overtake each other. */
        if (n->in_order && door == WAL_DOOR_SOCKET)
            CHECK(r->offset == n->next, "offset %" PRIu64 ", not %" PRIu64, r->offset, n->next);
        n->next = r->offset + 1;
        n->sum += r->offset;
        return;
    }
    n->refused++;
    n->unknown += unknown;
}

static bool readable(int fd, int timeout_ms)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    return poll(&p, 1, timeout_ms) == 1;
}

/* falls_silent says whether the descriptor stays unreadable once everything was polled.
 * Something may still come that makes it readable for good reason (a sign of life is due);
 * what makes it readable without one does so again and again. */
static bool falls_silent(wal *w, int fd)
{
    for (int i = 0; i < 2000; i++) {
        while (wal_poll(w, 0) > 0)
            continue;
        if (!readable(fd, 50))
            return true;
    }
    return false;
}

static void event_loop(struct sidecar *s)
{
    wal_opts wo = { .size = sizeof wo, .in_flight = 64 };
    wal *w = dial(s, &wo);
    struct counts n = { .in_order = true };
    wal_append_opts o = append_opts();
    o.done = count;
    o.opaque = &n;
    if (door == WAL_DOOR_SHM) { /* whoever left the door open goes over to the socket, and loses nothing */
        REFUSED(w, wal_event_fd(w), -WAL_UNSUPPORTED);
        wal_close(w);
        CHECK(wal_open(&w, s->socket, &wo) == 0, "open");
        for (int i = 0; i < 40; i++)
            MUST(w, wal_submit(w, "before", "x", 1, &o, PATIENCE_MS, NULL));
    }
    int fd = wal_event_fd(w), rc;
    CHECK(fd >= 0 && fd == wal_event_fd(w), "%d", fd);
    MUST(w, wal_flush(w, PATIENCE_MS));
    while (wal_poll(w, 0) > 0)
        continue;
    CHECK(n.durable == (door == WAL_DOOR_SHM ? 40 : 0), "%" PRIu64 " durable", n.durable);
    n = (struct counts){ .in_order = true };
    CHECK(falls_silent(w, fd), "readable while idle");
    char text[32];
    double until = seconds_now() + PATIENCE_MS / 1000;
    while (n.durable < 5000 && seconds_now() < until) {
        while (n.submitted < 5000) {
            rc = wal_try_append(w, "loop", text, (size_t)snprintf(text, sizeof text, "%" PRIu64, n.submitted), &o, NULL);
            if (rc == -EAGAIN)
                break;
            MUST(w, rc);
            n.submitted++;
        }
        CHECK(readable(fd, 10000), "asleep with %zu in flight", wal_in_flight(w));
        MUST(w, wal_poll(w, 0));
    }
    CHECK(n.durable == 5000 && n.refused == 0, "%" PRIu64 " durable", n.durable);

    /* What a blocking call found out stays readable until it is polled: level-triggered. */
    MUST(w, wal_try_append(w, "loop", "5000", 4, &o, NULL));
    MUST(w, wal_append(w, "other", "x", 1, NULL, PATIENCE_MS, NULL));
    CHECK(n.durable == 5000, "a callback outside of wal_poll");
    CHECK(readable(fd, 1000) && readable(fd, 0), "not readable with a callback to run");
    CHECK(wal_poll(w, 0) == 1 && n.durable == 5001, "%" PRIu64, n.durable);
    CHECK(falls_silent(w, fd), "readable with nothing to do");

    /* A follow is readable when a record came, until it was taken. */
    wal_read_opts ro = { .size = sizeof ro, .follow = 1 };
    wal_read *r;
    wal_item item;
    MUST(w, wal_read_open(w, "other", &ro, PATIENCE_MS, &r));
    while (wal_next(r, 0, &item) == -EAGAIN && readable(fd, 10000))
        MUST(w, wal_poll(w, 0));
    CHECK(item.kind == WAL_RECORD && item.offset == 0, "the first record");
    MUST(w, wal_append(w, "other", "y", 1, NULL, PATIENCE_MS, NULL));
    while (wal_next(r, 0, &item) == -EAGAIN && readable(fd, 10000))
        MUST(w, wal_poll(w, 0));
    CHECK(item.kind == WAL_RECORD && item.offset == 1, "the second record");
    wal_read_close(r);
    check_numbers(w, "loop", 5001);

    /* A restart wakes the loop, and the descriptor stays the same. */
    kill_sidecar(s);
    MUST(w, wal_try_append(w, "loop", "5001", 4, &o, NULL));
    pause_ms(50);
    start(s);
    while (n.durable < 5002 && seconds_now() < until && readable(fd, 10000))
        MUST(w, wal_poll(w, 0));
    CHECK(n.durable == 5002 && fd == wal_event_fd(w), "%" PRIu64, n.durable);
    check_numbers(w, "loop", 5002);

    /* Cancelled, every callback still comes. */
    n.in_order = false;
    stop_sidecar(s);
    for (int i = 0; i < 10; i++)
        MUST(w, wal_try_append(w, "loop", "x", 1, &o, NULL));
    MUST(w, wal_poll(w, 0));
    wal_cancel(w);
    CHECK(readable(fd, 0), "not readable after the end");
    while ((rc = wal_poll(w, 0)) > 0)
        continue;
    CHECK(rc == -ECANCELED && n.refused == 10 && n.unknown == 10, "%s, %" PRIu64 " refused", wal_strerror(rc), n.refused);
    wal_close(w);
    kill(s->pid, SIGCONT);
}

/* ---- Crashes ---------------------------------------------------------------------------------- */

/* Whatever was submitted is there once the sidecar is back, once, in order. */
static void exactly_once_over_crashes(struct sidecar *s)
{
    wal *w = dial(s, NULL);
    struct counts n = { .in_order = true };
    wal_append_opts o = append_opts();
    o.done = count;
    o.opaque = &n;
    char text[32];
    for (int crash = 0; crash < 6; crash++) {
        double until = seconds_now() + 0.15 + (double)below(100) / 1000;
        while (seconds_now() < until) {
            size_t bytes = (size_t)snprintf(text, sizeof text, "%" PRIu64, n.submitted);
            bool more = n.submitted < 10000 * (uint64_t)(crash + 1); /* they fit the log */
            int rc = more ? wal_submit(w, "s", text, bytes, &o, 20, NULL) : -ETIMEDOUT;
            n.submitted += rc == 0;
            CHECK(rc == 0 || rc == -ETIMEDOUT, "%s: %s", wal_strerror(rc), wal_last_error(w)->message);
            if (wal_in_flight(w) > 200 || !more)
                MUST(w, wal_poll(w, 5));
        }
        if (crash == 5)
            break;
        kill_sidecar(s);
        if (below(2) == 0) /* meanwhile others go in flight */
            MUST(w, wal_poll(w, 10));
        start(s);
    }
    MUST(w, wal_flush(w, PATIENCE_MS));
    while (wal_poll(w, 0) > 0)
        continue;
    CHECK(n.durable == n.submitted && n.submitted > 100, "%" PRIu64 " of %" PRIu64 ", %" PRIu64 " refused", n.durable,
          n.submitted, n.refused);
    CHECK(n.sum == n.submitted * (n.submitted - 1) / 2, "an offset twice");
    check_numbers(w, "s", n.submitted);
    wal_close(w);
}

/* A source that resumes where its named producer stands loses nothing and doubles nothing. */
static void named_producer_over_crashes(struct sidecar *s)
{
    wal *w = dial(s, NULL);
    wal_append_opts o = append_opts();
    wal_result r;
    char text[32];
    o.producer = "source";
    for (uint64_t i = 0; i < 300; i++) {
        o.sequence = 10 * (i + 1);
        MUST(w, wal_append(w, "n", text, (size_t)snprintf(text, sizeof text, "%" PRIu64, i), &o, PATIENCE_MS, &r));
        CHECK(!r.duplicate || r.last_sequence == o.sequence, "%" PRIu64 " is the last", r.last_sequence);
        if (i % 100 == 50) {
            kill_sidecar(s);
            start(s);
        }
    }
    check_numbers(w, "n", 300);
    wal_close(w);
}

/* Batches over two streams stay whole, and their results come from the first time. */
static void batches_over_crashes(struct sidecar *s)
{
    wal *w = dial(s, NULL);
    enum { BATCHES = 600 };
    static wal_ticket t[BATCHES];
    char text[32];
    wal_result r;
    for (int i = 0; i < BATCHES; i++) {
        size_t bytes = (size_t)snprintf(text, sizeof text, "%d", i);
        wal_entry e[2] = { { .stream = "x", .data = text, .data_bytes = bytes },
                           { .stream = "y", .data = text, .data_bytes = bytes } };
        MUST(w, wal_submit_batch(w, e, 2, NULL, PATIENCE_MS, &t[i]));
        if (i % 200 == 100) {
            MUST(w, wal_poll(w, 0));
            kill_sidecar(s);
            start(s);
        }
    }
    for (int i = 0; i < BATCHES; i++) {
        MUST(w, wal_wait(w, t[i], PATIENCE_MS, &r));
        CHECK(r.placed_count == 2 && r.placed[0].first == (uint64_t)i && r.placed[1].first == (uint64_t)i &&
                  r.placed[1].entry == 1, "batch %d", i);
    }
    check_numbers(w, "x", BATCHES);
    check_numbers(w, "y", BATCHES);
    wal_close(w);
}

/* A follow and a replay go on over crashes: each record once, in order. */
static void readers_over_crashes(struct sidecar *s)
{
    wal *w = dial(s, NULL);
    enum { RECORDS = 3000 };
    wal_read_opts ro = { .size = sizeof ro, .follow = 1, .read_ahead = 2000 };
    wal_read *readers[2];
    uint64_t next[2] = { 0, 0 };
    char text[32];
    MUST(w, wal_stream_create(w, "f", PATIENCE_MS, NULL));
    MUST(w, wal_read_open(w, "f", &ro, PATIENCE_MS, &readers[0]));
    MUST(w, wal_replay_open(w, 0, &ro, &readers[1]));
    uint64_t submitted = 0, crashes = 0;
    double until = seconds_now() + PATIENCE_MS / 1000;
    while ((next[0] < RECORDS || next[1] < RECORDS) && seconds_now() < until) {
        wal_entry e[3];
        char texts[3][32];
        wal_ticket ticket;
        memset(e, 0, sizeof e);
        for (int i = 0; i < 3; i++)
            e[i] = (wal_entry){ .stream = "f", .data = texts[i],
                                .data_bytes = (size_t)snprintf(texts[i], 32, "%" PRIu64, submitted + (uint64_t)i) };
        if (submitted < RECORDS && wal_submit_batch(w, e, 3, NULL, 0, &ticket) == 0)
            submitted += 3;
        if (submitted >= 600 * (crashes + 1) && crashes < 4) {
            crashes++;
            kill_sidecar(s);
            start(s);
        }
        wal_poll(w, 1);
        for (int k = 0; k < 2; k++) {
            wal_item item;
            int rc;
            while ((rc = wal_next(readers[k], 0, &item)) == WAL_RECORD) {
                int bytes = snprintf(text, sizeof text, "%" PRIu64, next[k]);
                CHECK(item.offset == next[k] && item.data_bytes == (size_t)bytes && memcmp(item.data, text, item.data_bytes) == 0 &&
                          strcmp(item.stream, "f") == 0 && item.batch_end == (next[k] % 3 == 2),
                      "reader %d: offset %" PRIu64 " where %" PRIu64 " was due", k, item.offset, next[k]);
                next[k]++;
            }
            CHECK(rc == -EAGAIN, "reader %d: %s", k, wal_strerror(rc));
        }
    }
    CHECK(next[0] == RECORDS && next[1] == RECORDS, "%" PRIu64 " and %" PRIu64 " records", next[0], next[1]);
    MUST(w, wal_flush(w, PATIENCE_MS));
    wal_close(w); /* frees the reads */
}

/* A wait that is given up says so, and the ticket can be waited for again. */
static void timeouts(struct sidecar *s)
{
    wal_opts wo = { .size = sizeof wo, .give_up_after_ms = 300 };
    wal *w = dial(s, &wo);
    wal_ticket t;
    wal_result r;
    MUST(w, wal_append(w, "a", "0", 1, NULL, PATIENCE_MS, NULL));
    stop_sidecar(s);
    MUST(w, wal_submit(w, "a", "1", 1, NULL, 0, &t));
    REFUSED(w, wal_wait(w, t, 30, &r), -ETIMEDOUT);
    CHECK(wal_last_error(w)->outcome_unknown && r.error == -ETIMEDOUT, "%d", r.error);
    REFUSED(w, wal_append(w, "a", "2", 1, NULL, 30, NULL), -ETIMEDOUT);
    CHECK(wal_last_error(w)->outcome_unknown, "outcome known");
    REFUSED(w, wal_stream_stat(w, "a", 30, NULL), -ETIMEDOUT);
    kill(s->pid, SIGCONT);
    MUST(w, wal_wait(w, t, PATIENCE_MS, &r));
    CHECK(r.offset == 1, "%" PRIu64, r.offset);
    MUST(w, wal_append(w, "a", "3", 1, NULL, PATIENCE_MS, &r));
    CHECK(r.offset == 3, "%" PRIu64, r.offset);
    kill_sidecar(s);
    int rc = wal_append(w, "a", "4", 1, NULL, PATIENCE_MS, NULL);
    CHECK(rc == -WAL_DISCONNECTED || rc == -WAL_OUTCOME_UNKNOWN, "%s", wal_strerror(rc));
    REFUSED(w, wal_poll(w, 0), -WAL_DISCONNECTED);
    REFUSED(w, wal_append(w, "a", "5", 1, NULL, PATIENCE_MS, NULL), -WAL_DISCONNECTED);
    wal_close(w);
    start(s);
}

/* ---- A full log ----------------------------------------------------------------------------------- */

/* fill appends until the log is full, several in flight, and returns how many are in. */
static uint64_t fill(wal *w, const char *stream)
{
    static char data[60000];
    uint64_t in = 0;
    for (int before = failures;;) {
        wal_ticket t[8];
        int submitted = 0, rc = 0, refused = 0;
        for (; submitted < 8 && rc == 0; submitted += rc == 0)
            rc = wal_submit(w, stream, data, sizeof data, NULL, PATIENCE_MS, &t[submitted]);
        for (int i = 0; i < submitted; i++) {
            wal_result r;
            int answer = wal_wait(w, t[i], PATIENCE_MS, &r);
            CHECK(answer == 0 || answer == -WAL_LOG_FULL, "%s", wal_strerror(answer));
            CHECK(answer != 0 || (refused == 0 && r.offset == in), "%" PRIu64 " overtook a refused one", r.offset);
            in += answer == 0;
            refused += answer != 0;
        }
        if (refused > 0 || rc == -WAL_LOG_FULL || failures > before)
            return in;
    }
}

static void full_log(struct sidecar *s)
{
    wal *w = dial(s, NULL);
    wal_result r;
    static char data[60000];
    uint64_t in = fill(w, "big");
    CHECK(in > 100, "%" PRIu64 " records of 60 kB in 32 MiB", in);
    int rc = wal_append(w, "big", data, sizeof data, NULL, PATIENCE_MS, &r);
    CHECK(rc == -WAL_LOG_FULL && strcmp(wal_last_error(w)->stream, "big") == 0 && wal_last_error(w)->retriable, "%s",
          wal_strerror(rc));
    MUST(w, wal_trim(w, "big", in, PATIENCE_MS, NULL));
    double until = seconds_now() + PATIENCE_MS / 1000; /* trimmed space is free after a checkpoint */
    while ((rc = wal_append(w, "big", data, sizeof data, NULL, PATIENCE_MS, &r)) == -WAL_LOG_FULL && seconds_now() < until)
        pause_ms(5);
    CHECK(rc == 0 && r.offset == in, "%s, offset %" PRIu64, wal_strerror(rc), r.offset);
    wal_close(w);

    wal_opts wo = { .size = sizeof wo, .wait_while_full = 1 };
    w = dial(s, &wo);
    wal *other = dial(s, NULL);
    in = in + 1;
    wal_ticket t[700];
    int n = 0;
    while (n < 700 && (rc = wal_submit(w, "big", data, sizeof data, NULL, 1000, &t[n])) == 0)
        n++;
    CHECK(n == 700 || rc == -ETIMEDOUT, "%s", wal_strerror(rc));
    rc = wal_wait(w, t[n - 1], 200, &r);
    CHECK(rc == -ETIMEDOUT, "%s: the log was not full", wal_strerror(rc));
    MUST(other, wal_trim(other, "big", in + 300, PATIENCE_MS, NULL));
    for (int i = 0; i < n; i++) {
        wal_stream_info info;
        if (i % 50 == 0 && wal_stream_stat(other, "big", PATIENCE_MS, &info) == 0)
            MUST(other, wal_trim(other, "big", info.next_offset, PATIENCE_MS, NULL));
        while ((rc = wal_wait(w, t[i], 1000, &r)) == -ETIMEDOUT && seconds_now() < until + 60)
            if (wal_stream_stat(other, "big", PATIENCE_MS, &info) == 0)
                MUST(other, wal_trim(other, "big", info.next_offset, PATIENCE_MS, NULL));
        CHECK(rc == 0 && r.offset == in + (uint64_t)i, "record %d: %s, offset %" PRIu64, i, wal_strerror(rc), r.offset);
    }
    wal_close(other);
    wal_close(w);
}

static const struct {
    const char *name;
    void (*run)(struct sidecar *);
} tests[] = {
    { "append_read_replay", append_read_replay },
    { "batches_and_conditions", batches_and_conditions },
    { "bad_requests", bad_requests },
    { "producers", producers },
    { "stream_life", stream_life },
    { "list_in_pages", list_in_pages },
    { "tickets", tickets },
    { "event_loop", event_loop },
    { "exactly_once_over_crashes", exactly_once_over_crashes },
    { "named_producer_over_crashes", named_producer_over_crashes },
    { "batches_over_crashes", batches_over_crashes },
    { "readers_over_crashes", readers_over_crashes },
    { "timeouts", timeouts },
    { "full_log", full_log },
};

int main(int argc, char **argv)
{
    if (argc < 3 || (strcmp(argv[2], "socket") != 0 && strcmp(argv[2], "shm") != 0)) {
        fprintf(stderr, "usage: %s path/to/walsidecar socket|shm [TEST...]\n", argv[0]);
        return 2;
    }
    program = argv[1];
    door = strcmp(argv[2], "shm") == 0 ? WAL_DOOR_SHM : WAL_DOOR_SOCKET;
    seed((uint64_t)(seconds_now() * 1e6));
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        bool wanted = argc == 3;
        for (int k = 3; k < argc; k++)
            wanted |= strcmp(argv[k], tests[i].name) == 0;
        if (!wanted)
            continue;
        struct sidecar s;
        int before = failures;
        double from = seconds_now();
        new_sidecar(&s, strstr(tests[i].name, "_over_crashes") != NULL);
        tests[i].run(&s);
        end_sidecar(&s);
        printf("%s %s (%.1f s)\n", failures == before ? "ok  " : "FAIL", tests[i].name, seconds_now() - from);
    }
    return failures > 0;
}
