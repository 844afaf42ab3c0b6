/* walsidecar.h - the C client of a walsidecar: append records to streams of a
 * write-ahead log through shared memory or the sidecar's Unix socket, and read them back.
 *
 * SYNOPSIS
 *     #include <walsidecar.h>
 *     cc program.c $(pkg-config --cflags --libs walsidecar)
 *
 *     wal *w;
 *     wal_result r;
 *     int rc = wal_open(&w, "walsidecar-data/wal.sock", NULL);
 *     if (rc == 0)
 *         rc = wal_append(w, "orders", "hello", 5, NULL, -1, &r);
 *     if (rc < 0)
 *         fprintf(stderr, "%s\n", wal_strerror(rc));
 *
 * DESCRIPTION
 *     wal_append() returns once the record is durable. wal_submit() and
 *     wal_try_append() put a record in flight and return; its answer comes to
 *     wal_wait(), or to a callback inside wal_poll(). Data is copied before any of
 *     them returns.
 *
 *     The client connects again by itself and sends what was not answered once
 *     more, in order, under a producer that the log issued to it: a restart of the
 *     sidecar neither loses nor doubles a record.
 *
 *     There are no hidden threads. Bytes move, and callbacks run, only while the
 *     program is inside a function of this header; callbacks run only inside
 *     wal_poll(). A client that calls nothing for longer than the sidecar's idle
 *     time (300 s) loses its connection, and gets a new one at its next call.
 *
 * THREADS
 *     A handle, with everything opened from it, is used by one thread at a time;
 *     wal_durable() alone may be called by any thread at any moment. Handles are
 *     independent of each other. After fork(2) only one of the two processes may
 *     go on using a handle, and the other must not even close it.
 *
 * RETURN VALUES
 *     0 or a positive number is success. A negative number is an error, for
 *     wal_strerror(): either -errno (-EAGAIN, -ETIMEDOUT, -EINVAL, -ENOMEM,
 *     -ENOBUFS, -ESTALE, -EDEADLK, -ECANCELED, -E2BIG) or one of the protocol's
 *     codes, -WAL_NOT_FOUND and so on. wal_last_error() has the details.
 *
 * TIMEOUTS
 *     timeout_ms is how long a function may wait: 0 not at all, -1 for ever.
 *     -ETIMEDOUT abandons the wait, not a request that was sent: its outcome is
 *     unknown, and wal_last_error()->outcome_unknown says so.
 *
 * STRINGS
 *     Names are UTF-8, 1 to 255 bytes, terminated by NUL. Payloads, tokens and
 *     values of headers are any bytes.
 *
 * The layouts that the client speaks are in docs/protocol.md.
 */
#ifndef WALSIDECAR_H
#define WALSIDECAR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WAL_API __attribute__((visibility("default")))
#else
#define WAL_API
#endif

/* Version of this header. A change of the major number breaks the ABI and
 * changes the soname. */
#define WAL_VERSION_MAJOR 0
#define WAL_VERSION_MINOR 1

typedef struct wal wal;           /* a client: one session with a sidecar */
typedef struct wal_read wal_read; /* a read, follow or replay of a client */

/* wal_ticket stands for one submission. 0 is never a ticket. */
typedef uint64_t wal_ticket;

/* Codes of the protocol's table of errors (docs/protocol.md), each 10,000 above
 * its number there. Functions return them negated: -WAL_LOG_FULL. */
enum wal_code {
    WAL_CODE_BASE = 10000,
    WAL_INTERNAL = 10001,
    WAL_BAD_REQUEST = 10002,
    WAL_TOO_LARGE = 10003,
    WAL_UNSUPPORTED = 10004,
    WAL_UNAUTHORIZED = 10005,
    WAL_WRONG_LOG = 10006,
    WAL_READ_ONLY = 10007,
    WAL_USAGE = 10008,
    WAL_CANCELLED = 10009,
    WAL_OUTCOME_UNKNOWN = 10010,
    WAL_DISCONNECTED = 10011,
    WAL_LOG_WENT_BACK = 10012,
    WAL_NOT_FOUND = 10020,
    WAL_SEALED = 10021,
    WAL_DELETED = 10022,
    WAL_TRIMMED = 10023,
    WAL_DATA_LOST = 10024,
    WAL_PRECONDITION_FAILED = 10030,
    WAL_TOKEN_MISMATCH = 10031,
    WAL_DUPLICATE = 10032,
    WAL_OUT_OF_SEQUENCE = 10033,
    WAL_SEQUENCE_EXPIRED = 10034,
    WAL_PRODUCER_EXPIRED = 10035,
    WAL_WINDOW_EXCEEDED = 10036,
    WAL_TOO_MANY_STREAMS = 10040,
    WAL_TOO_MANY_PRODUCERS = 10041,
    WAL_CHECKPOINT_FULL = 10042,
    WAL_LOG_FULL = 10043,
    WAL_STORE_UNAVAILABLE = 10044,
    WAL_BUSY = 10050,
    WAL_TOO_MANY_SESSIONS = 10051,
    WAL_OUT_OF_MEMORY = 10052,
    WAL_SLOW_CLIENT = 10053,
    WAL_IDLE_CLIENT = 10054,
    WAL_DRAINING = 10055,
    WAL_NOT_READY = 10056,
    WAL_FENCED = 10060,
    WAL_LOG_FAILED = 10061,
    WAL_DAMAGED = 10062,
    WAL_NOT_OUR_DEVICE = 10063,
    WAL_IN_USE = 10064
};

/* Limits of the client. Those of the protocol are in docs/protocol.md. */
enum wal_limit {
    WAL_DEFAULT_IN_FLIGHT = 1024,         /* appends unanswered at once */
    WAL_MAX_IN_FLIGHT = 8192,             /* the largest window of a session producer */
    WAL_DEFAULT_IN_FLIGHT_BYTES = 16 << 20,
    WAL_DEFAULT_READ_AHEAD = 1 << 20,     /* bytes of a read that wait in the client */
    WAL_DEFAULT_OPEN_TIMEOUT_MS = 30000,
    WAL_MAX_RESULTS = 65536,              /* answers that nobody took */
    WAL_MAX_BATCH = 4096,                 /* records of a batch */
    WAL_MAX_NAME = 255,                   /* bytes of the name of a stream or producer */
    WAL_MAX_TOKEN = 64,                   /* bytes of a token */
    WAL_MAX_HEADERS = 64                  /* headers of a record */
};

/* wal_door is the way by which appends go to the sidecar; everything else goes over the
 * socket. In shared memory an append costs no system call while both sides are busy. As
 * nothing in shared memory makes a descriptor readable, wal_event_fd() makes a client of
 * WAL_DOOR_AUTO use the socket. One thread cannot sleep on both: while appends are in
 * flight in shared memory it looks at the socket at least once a millisecond, so a client
 * that reads while it appends had better use two handles. */
enum wal_door {
    WAL_DOOR_AUTO = 0,      /* shared memory where the sidecar has it, else the socket */
    WAL_DOOR_SHM = 1,       /* shared memory; without it wal_open() fails, -WAL_UNSUPPORTED */
    WAL_DOOR_SOCKET = 2     /* the Unix socket alone */
};

/* wal_waiting is how a thread waits for acks in shared memory before it sleeps. Where it
 * and the sidecar have but one core it sleeps at once. */
enum wal_waiting {
    WAL_WAIT_ADAPTIVE = 0,  /* look for up to 50 us as long as that pays */
    WAL_WAIT_SPIN = 1,      /* look for up to 1 ms each time: for a thread with a core of its own */
    WAL_WAIT_BLOCK = 2      /* sleep at once */
};

/* ---- Open and close ----------------------------------------------------- */

/* wal_opts changes how wal_open() connects. Zero in a field is its default:
 *
 *     wal_opts o = {0};        // in C++: wal_opts o{};
 *     o.size = sizeof o;
 *
 * The size tells the library which fields the program knows. A program compiled
 * with a newer header than the library's gets -E2BIG if it uses a field that the
 * library does not know. The same holds for every struct with a size. */
typedef struct wal_opts {
    size_t size;              /* sizeof(wal_opts) */
    const char *log;          /* a log UUID or the name of its node; NULL: the sidecar's own */
    const char *name;         /* who this is, for the sidecar's logs; NULL: the program's name */
    uint32_t in_flight;       /* appends unanswered at once, up to WAL_MAX_IN_FLIGHT; 0: 1,024 */
    uint32_t open_timeout_ms; /* how long wal_open() may take; 0: 30,000 */
    size_t in_flight_bytes;   /* bytes of appends unanswered at once; 0: 16 MiB. A sidecar that
                               * allows less wins. They are the memory from which they would be
                               * sent again. One append may exceed it when it is alone */
    uint32_t give_up_after_ms; /* ends the client once it has been without a sidecar for so
                               * long; 0: it tries for ever */
    int wait_while_full;      /* appends wait while the log is full and go on in order when it
                               * has room, where they would return -WAL_LOG_FULL */
    char *error_text;         /* where wal_open() writes why it failed; NULL: nowhere */
    size_t error_text_bytes;  /* size of error_text */
    int door;                 /* of enum wal_door */
    int waiting;              /* of enum wal_waiting */
} wal_opts;

/* wal_open connects to the sidecar whose socket is path and stores a handle in *w.
 * It tries once: with no sidecar there it returns -WAL_DISCONNECTED, while one
 * starts -WAL_NOT_READY. Afterwards the client connects again by itself until it is
 * closed. opts may be NULL. On an error *w is NULL. */
WAL_API int wal_open(wal **w, const char *path, const wal_opts *opts);

/* wal_close ends the session and frees the handle and its reads. What was sent and
 * not answered may or may not be in the log; wal_flush() before it waits for the
 * answers. It runs no callback. Returns -EDEADLK inside a callback, and then does
 * nothing; NULL is allowed. */
WAL_API int wal_close(wal *w);

/* wal_cancel ends the session and keeps the handle, so that the callbacks of what
 * was in flight come in the next wal_poll(): with -WAL_OUTCOME_UNKNOWN for what
 * was sent, -ECANCELED for what was not. Only wal_poll(), wal_wait() and
 * wal_close() make sense after it. */
WAL_API void wal_cancel(wal *w);

/* wal_log_info is what the sidecar said of its log when the client connected last. */
typedef struct wal_log_info {
    uint8_t uuid[16];
    uint64_t epoch;
    uint64_t trim;             /* trim position then */
    uint32_t max_batch_records;
    uint32_t max_batch_bytes;  /* what a batch may take in the log, see docs/protocol.md */
    int read_only;
    int not_durable;           /* a log for measurements: answers promise nothing */
    int shared_memory;         /* appends go through shared memory */
    char node[64];
    char server[256];          /* name and version of the sidecar */
    uint64_t reserved[4];
} wal_log_info;

/* wal_get_log_info fills in *info. It waits for nothing. */
WAL_API void wal_get_log_info(const wal *w, wal_log_info *info);

/* ---- Errors -------------------------------------------------------------- */

/* wal_strerror describes an error that a function returned: its name in the
 * protocol's table and what to do. The string is constant; any thread may ask. */
WAL_API const char *wal_strerror(int error);

/* wal_error is what is known of a failure. */
typedef struct wal_error {
    int code;               /* as it was returned */
    int outcome_unknown;    /* the request may have taken effect; else it did not */
    int retriable;          /* the same request can succeed later */
    int has_actual, has_offset, has_position;
    int64_t entry;          /* index of the entry of a batch that failed; -1: none */
    uint64_t actual;        /* what was found in place of what was asked for: the next offset
                             * of the stream, the last sequence of the producer */
    uint64_t offset, position; /* where in the stream and in the log */
    const char *stream;     /* the one that it is about ("": none); of a full log, the one
                             * that pins it */
    const char *message;    /* what failed */
    const char *hint;       /* what to do */
} wal_error;

/* wal_last_error describes the newest failure of a function with this handle; in a
 * callback whose result has an error, that one. The struct and its strings belong
 * to the handle and are valid until its next function is called. */
WAL_API const wal_error *wal_last_error(const wal *w);

/* ---- Append -------------------------------------------------------------- */

/* wal_header is one header of a record. Keys are 1 to 255 bytes of UTF-8 and may
 * repeat; all headers of a record take 16 KiB at most. */
typedef struct wal_header {
    const char *key;
    size_t key_bytes;       /* 0: the key ends with NUL */
    const void *value;
    size_t value_bytes;
} wal_header;

/* wal_placed tells where the records of one stream of a batch stand: at the offsets
 * [first, first + count). */
typedef struct wal_placed {
    uint64_t stream_id;
    uint64_t first;
    uint32_t count;
    uint32_t entry;         /* index of the first entry of the batch for this stream */
} wal_placed;

/* wal_result is the answer to an append. */
typedef struct wal_result {
    int error;              /* 0, or why it was refused */
    int duplicate;          /* the named producer had got as far as this sequence already:
                             * nothing was appended, offset and position are 0 */
    uint64_t offset;        /* of the first record in its stream, for ever */
    uint64_t position;      /* of the batch in the log: replay finds it from there */
    uint64_t last_sequence; /* of the named producer, with duplicate */
    const wal_placed *placed; /* of a batch: one per distinct stream, in the order in which
                             * the batch names them; NULL for a single record. Valid until
                             * the next function that gives a result; in a callback, until
                             * it returns */
    size_t placed_count;
    uint64_t reserved[4];
} wal_result;

/* wal_done is called inside wal_poll() once for a submission that named it, as the answers
 * come: in the order of submission as a rule, but for refusals, and for what was sent again
 * after a lost connection. It may call every function but wal_poll() and wal_close().
 * result is valid until it returns. */
typedef void wal_done(wal *w, wal_ticket ticket, const wal_result *result, void *opaque);

/* wal_append_opts adds conditions, headers, a producer or a callback to an append. */
typedef struct wal_append_opts {
    size_t size;            /* sizeof(wal_append_opts) */
    int has_expect;         /* expect is given */
    int must_exist;         /* do not create the stream: -WAL_NOT_FOUND */
    uint64_t expect;        /* the record gets this offset, or the append is refused with
                             * -WAL_PRECONDITION_FAILED and wal_error.actual is the stream's
                             * next offset. In a batch it is the first entry's */
    const void *token;      /* the token of the stream; in a batch, for entries without their own */
    size_t token_bytes;
    const wal_header *headers; /* of the record; in a batch, before those of each entry */
    size_t header_count;
    const char *producer;   /* a named producer, created if need be; NULL: the session's own */
    uint64_t sequence;      /* of the named producer: grows from append to append, in any
                             * steps; at or below the last one nothing is appended and the
                             * result is a duplicate. wal_producer_open() tells the last */
    wal_done *done;         /* NULL: the result is kept for wal_wait() */
    void *opaque;           /* handed to done */
} wal_append_opts;

/* wal_entry is one record of a batch. Zero it before use. */
typedef struct wal_entry {
    const char *stream;
    const void *data;
    size_t data_bytes;
    const wal_header *headers;
    size_t header_count;
    const void *token;
    size_t token_bytes;
    uint64_t expect;        /* each entry sees the ones before it */
    int has_expect;
    int reserved;
} wal_entry;

/* wal_append appends one record and returns once it is durable. It creates a missing
 * stream unless must_exist is set. opts and result may be NULL; opts->done is not
 * allowed. Returns 0 or what result->error says. -ETIMEDOUT with outcome_unknown
 * means that the record may be in the log or still come there; use wal_submit()
 * where the answer matters later. */
WAL_API int wal_append(wal *w, const char *stream, const void *data, size_t data_bytes,
                       const wal_append_opts *opts, int timeout_ms, wal_result *result);

/* wal_append_batch appends 1 to WAL_MAX_BATCH records to one or several streams, all
 * or none, and returns once they are durable. They share one position and become
 * visible together. Else like wal_append. */
WAL_API int wal_append_batch(wal *w, const wal_entry *entries, size_t count,
                             const wal_append_opts *opts, int timeout_ms, wal_result *result);

/* wal_submit puts one record in flight and stores its ticket (which may be NULL where
 * opts->done is given). It waits up to timeout_ms for room in flight, and for one
 * round trip at the first append to a stream; -ETIMEDOUT: nothing was submitted.
 * Records are appended in the order in which they were submitted.
 *
 * A result without callback is kept until wal_wait() or wal_flush() takes it; when
 * WAL_MAX_RESULTS are kept, -ENOBUFS. -WAL_LOG_FULL ends every record in flight behind
 * the refused one too, so that none overtakes it: submit them again, in order. */
WAL_API int wal_submit(wal *w, const char *stream, const void *data, size_t data_bytes,
                       const wal_append_opts *opts, int timeout_ms, wal_ticket *ticket);

/* wal_submit_batch is wal_append_batch() that does not wait for the answer. */
WAL_API int wal_submit_batch(wal *w, const wal_entry *entries, size_t count,
                             const wal_append_opts *opts, int timeout_ms, wal_ticket *ticket);

/* wal_try_append is wal_submit() that never waits: -EAGAIN where it would. Then
 * wal_poll(), or wait for wal_event_fd() first, and try again. */
WAL_API int wal_try_append(wal *w, const char *stream, const void *data, size_t data_bytes,
                           const wal_append_opts *opts, wal_ticket *ticket);

/* wal_wait waits for the answer to a submission without callback and takes it: it
 * fills in *result (may be NULL) and returns result->error. -ETIMEDOUT leaves the
 * ticket as it was, to be waited for again; -ESTALE: the answer was taken before, or
 * goes to a callback. */
WAL_API int wal_wait(wal *w, wal_ticket ticket, int timeout_ms, wal_result *result);

/* wal_flush waits until everything submitted before it has been answered, and takes
 * the results that wal_wait() did not. Returns 0 if all of those were appended, else
 * the error of the first that was not. Callbacks still come in wal_poll() alone. */
WAL_API int wal_flush(wal *w, int timeout_ms);

/* wal_durable returns the highest durable position that this client has been told of:
 * every record at a lower position can be read. One load; any thread may call it. */
WAL_API uint64_t wal_durable(const wal *w);

/* wal_in_flight returns how many submissions are not answered. */
WAL_API size_t wal_in_flight(const wal *w);

/* ---- Event loops --------------------------------------------------------- */

/* wal_poll writes what was submitted, reads what came, connects again if need be,
 * and runs the callbacks of what was answered. It waits up to timeout_ms until
 * something happens. Returns the number of callbacks that ran (0: none, but it may
 * be worth trying again what returned -EAGAIN), or why the client has ended:
 * -ECANCELED, -WAL_DISCONNECTED, -WAL_WRONG_LOG, -ENOMEM. -EDEADLK inside a callback. */
WAL_API int wal_poll(wal *w, int timeout_ms);

/* wal_event_fd makes appends go over the socket (see enum wal_door; -WAL_UNSUPPORTED for a
 * client of WAL_DOOR_SHM) and returns a descriptor for poll(2), select(2), epoll(7): it is readable
 * (POLLIN) for as long as wal_poll() has something to do, or wal_next() something to
 * return. It stays the same over reconnects and belongs to the handle: never read,
 * close or change it. Or -errno. Programs with an event loop call it once, right
 * after wal_open(). */
WAL_API int wal_event_fd(wal *w);

/* ---- Streams ------------------------------------------------------------- */

enum wal_stream_flag {
    WAL_STREAM_SEALED = 1,
    WAL_STREAM_HAS_TOKEN = 2,
    WAL_STREAM_DELETED = 4,
    WAL_STREAM_CREATED = 8  /* by this request */
};

/* wal_stream_info is the state of a stream. */
typedef struct wal_stream_info {
    uint64_t id;            /* never used again: a name created anew is another stream */
    uint64_t first_offset;  /* of the oldest record that can be read */
    uint64_t next_offset;   /* of the next one to be appended */
    int64_t created_ns;     /* since the Unix epoch */
    int64_t last_ns;        /* timestamp of the newest record; 0: there was none */
    uint32_t flags;         /* of enum wal_stream_flag */
    uint32_t name_bytes;
    char name[256];         /* ends with NUL */
    uint64_t reserved[4];
} wal_stream_info;

/* Each of these asks the sidecar and waits for the answer. info may be NULL.
 * wal_stream_create makes the stream, or returns the one that has the name.
 * wal_stream_seal ends it: appends are refused with -WAL_SEALED from then on.
 * wal_stream_delete deletes it and its records. */
WAL_API int wal_stream_create(wal *w, const char *stream, int timeout_ms, wal_stream_info *info);
WAL_API int wal_stream_stat(wal *w, const char *stream, int timeout_ms, wal_stream_info *info);
WAL_API int wal_stream_seal(wal *w, const char *stream, int timeout_ms, wal_stream_info *info);
WAL_API int wal_stream_delete(wal *w, const char *stream, int timeout_ms);

/* wal_stream_token sets the stream's token to after if it is before (no bytes: none),
 * else -WAL_TOKEN_MISMATCH. Appends later in the log must carry it. */
WAL_API int wal_stream_token(wal *w, const char *stream, const void *before, size_t before_bytes,
                             const void *after, size_t after_bytes, int timeout_ms);

/* wal_trim gives up the records of the stream below the offset before, and stores the
 * effective first offset in *first (may be NULL): never lower than it was, never
 * above the stream's end. */
WAL_API int wal_trim(wal *w, const char *stream, uint64_t before, int timeout_ms, uint64_t *first);

/* wal_stream_list stores up to capacity streams whose names begin with prefix (NULL:
 * all) and come after the name after (NULL: from the first), in byte order, and
 * returns how many. 0 is the end. For the next page after is the last name. A stream
 * created or deleted meanwhile may be seen or not. */
WAL_API int wal_stream_list(wal *w, const char *prefix, const char *after, int timeout_ms,
                            wal_stream_info *infos, size_t capacity);

/* ---- Producers and the sidecar ------------------------------------------- */

/* wal_producer_open makes this client the one that appends under a named producer, which
 * is made if need be, and stores its last sequence, 0 if there is none (last_sequence may
 * be NULL). What an earlier client left on its way is refused from here on, so a source
 * that goes on after it neither loses nor doubles a record. An append that names the
 * producer does the same, but does not tell. Two clients under one name take it from each
 * other: -WAL_PRODUCER_EXPIRED. */
WAL_API int wal_producer_open(wal *w, const char *producer, int timeout_ms, uint64_t *last_sequence);

/* wal_producer_get stores the last sequence of a named producer that is in the log;
 * the answer covers everything appended before the call, acked or not. It only tells:
 * what another client has on its way can follow. -WAL_NOT_FOUND: there is none. */
WAL_API int wal_producer_get(wal *w, const char *producer, int timeout_ms, uint64_t *last_sequence);

/* wal_producer_remove forgets a named producer and its last sequence. */
WAL_API int wal_producer_remove(wal *w, const char *producer, int timeout_ms);

/* wal_ping asks for a sign of life: one round trip that waits for no device. */
WAL_API int wal_ping(wal *w, int timeout_ms);

/* wal_status stores the JSON document of `walsidecar status --json`, ended with NUL, in
 * json, and returns its length without the NUL. -ENOBUFS: it is longer than
 * capacity - 1; nothing is stored. 1 MiB is always enough. */
WAL_API int wal_status(wal *w, int timeout_ms, char *json, size_t capacity);

/* ---- Read ---------------------------------------------------------------- */

enum wal_start {
    WAL_FROM_FIRST = 0,     /* the oldest record that can be read */
    WAL_FROM_OFFSET = 1,    /* the record with offset value; if that was trimmed, a gap first */
    WAL_FROM_TIME = 2,      /* the first record not before value, in ns since the Unix epoch */
    WAL_FROM_LAST = 3       /* value records before the end */
};

/* wal_read_opts changes where a read starts and how far it goes. */
typedef struct wal_read_opts {
    size_t size;            /* sizeof(wal_read_opts) */
    int from;               /* of enum wal_start; in a replay without meaning */
    int follow;             /* wait at the end for more, for ever */
    uint64_t value;
    uint64_t limit;         /* end after so many records (a replay: with the batch that
                             * reaches them); 0: no limit */
    size_t read_ahead;      /* bytes that may wait in the client, one large record more;
                             * 0: 1 MiB */
    int caught_up;          /* in a follow, return WAL_CAUGHT_UP marks too */
} wal_read_opts;

/* wal_read_open begins to read the durable records of a stream, to its end as it is
 * now, or further with opts->follow. It waits up to timeout_ms for the sidecar to say
 * which stream has the name. The read outlives connections. */
WAL_API int wal_read_open(wal *w, const char *stream, const wal_read_opts *opts, int timeout_ms,
                          wal_read **r);

/* wal_replay_open begins to read the whole log in commit order, from the first batch at
 * or after position. It waits for nothing. */
WAL_API int wal_replay_open(wal *w, uint64_t position, const wal_read_opts *opts, wal_read **r);

/* What wal_next() returned. */
enum wal_item_kind { WAL_END = 0, WAL_RECORD = 1, WAL_GAP = 2, WAL_CAUGHT_UP = 3 };

enum wal_gap_kind { WAL_GAP_TRIMMED = 1, WAL_GAP_DELETED = 2, WAL_GAP_SEALED = 3, WAL_GAP_DATA_LOST = 4 };

/* wal_item is one record, gap or mark. Its pointers are valid until the next call of
 * wal_next() or wal_read_close() with the same read. */
typedef struct wal_item {
    int kind;               /* of enum wal_item_kind, not WAL_END */
    int batch_end;          /* record: the last of its batch */
    const char *stream;     /* the name; in a replay "" where the stream is deleted, or where a
                             * gap concerns the whole log */
    uint64_t stream_id;
    uint64_t offset;
    uint64_t position;      /* of the record's batch */
    int64_t timestamp_ns;   /* since the Unix epoch; never before the record before */
    const void *data;
    size_t data_bytes;
    const void *headers;    /* encoded, for wal_header_next() */
    size_t header_bytes;
    int gap;                /* of enum wal_gap_kind */
    uint64_t from, to;      /* gap: these offsets (whole log: positions) are missing: [from, to) */
    uint64_t next;          /* mark: the offset or position at which it goes on */
    uint64_t reserved[4];
} wal_item;

/* wal_next stores the next item and returns its kind, WAL_END (0) after the last one,
 * -EAGAIN if timeout_ms is 0 and there is none yet, -ETIMEDOUT, or the error that ended
 * the read. Records come in order, each once, over reconnects too, and every record's
 * checksum is verified. A gap is followed by what comes behind it, except that
 * nothing comes behind a deleted or sealed stream. A read without follow ends without
 * a gap where its stream is sealed; one from WAL_FROM_FIRST begins without a gap. */
WAL_API int wal_next(wal_read *r, int timeout_ms, wal_item *item);

/* wal_read_close ends a read. NULL is allowed. */
WAL_API void wal_read_close(wal_read *r);

/* wal_header_next stores the header at *cursor (0 for the first one) and moves the
 * cursor on. Returns 1, or 0 after the last one. Key and value point into the item;
 * the key does not end with NUL. */
WAL_API int wal_header_next(const wal_item *item, size_t *cursor, wal_header *header);

/* wal_header_get stores the value of the first header with this key. Returns 1, or 0
 * if there is none. */
WAL_API int wal_header_get(const wal_item *item, const char *key, const void **value,
                           size_t *value_bytes);

#ifdef __cplusplus
}
#endif

#endif
