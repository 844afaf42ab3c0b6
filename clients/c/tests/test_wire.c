/* test_wire DIRECTORY: the golden vectors of wire/testdata, the table of errors, cut and
 * malformed messages. Every message of a client is encoded, every message of a sidecar
 * decoded. */
#include "../walsidecar.c"

#include "check.h"
#include "json.h"

/* same compares a field with a number. */
static void same(const char *vector, const struct json *fields, const char *key, uint64_t got)
{
    const struct json *field = json_get(fields, key);
    uint64_t want = field->type == 't' ? 1 : field->type == 'f' ? 0 : json_number(fields, key);
    CHECK(field->type != 'n' && got == want, "%s: %s is %" PRIu64 ", not %" PRIu64, vector, key, got, want);
}

static void same_text(const char *vector, const struct json *fields, const char *key, const char *got)
{
    CHECK(strcmp(json_text(fields, key), got) == 0, "%s: %s is \"%s\"", vector, key, got);
}

static void same_bytes(const char *vector, const struct json *fields, const char *key, const void *got, size_t n)
{
    size_t want_bytes;
    unsigned char *want = json_hex(json_text(fields, key), &want_bytes);
    CHECK(n == want_bytes && memcmp(got, want, n) == 0, "%s: %s differs", vector, key);
    free(want);
}

/* headers_of makes of a headers block what a caller gives to append it. */
static size_t headers_of(const unsigned char *block, size_t n, wal_header *headers)
{
    wal_item item = { .headers = block, .header_bytes = n };
    size_t count = 0, cursor = 0;
    while (wal_header_next(&item, &cursor, &headers[count]) == 1)
        count++;
    return count;
}

static size_t encode_append(const struct json *f, uint64_t request, unsigned char *to)
{
    const struct json *entries = json_get(f, "entries");
    size_t count = 0;
    for (const struct json *e = entries->first; e != NULL; e = e->next)
        count++;
    struct encoder out = begin_append(to, request, json_flag(f, "has_producer"), json_number(f, "producer"),
                                      json_number(f, "sequence"), json_number(f, "acked"), count);
    for (const struct json *e = entries->first; e != NULL; e = e->next) {
        size_t token_bytes, data_bytes, block_bytes;
        unsigned char *token = json_hex(json_text(e, "token"), &token_bytes);
        unsigned char *data = json_hex(json_text(e, "payload"), &data_bytes);
        unsigned char *block = json_hex(json_text(e, "headers"), &block_bytes);
        wal_header headers[WAL_MAX_HEADERS];
        struct entry entry = {
            .stream = json_number(e, "stream"), .has_expect = json_flag(e, "has_expect"),
            .expect = json_number(e, "expect"), .token = token, .token_bytes = token_bytes,
            .data = data, .data_bytes = data_bytes, .block_bytes = block_bytes, .headers = { NULL, headers },
        };
        entry.header_counts[1] = headers_of(block, block_bytes, headers);
        put_entry(&out, &entry);
        free(token);
        free(data);
        free(block);
    }
    return finish_message(&out);
}

/* encode encodes a message of a client from its fields; 0: not one of a client's. */
static size_t encode(const char *type, const struct json *f, uint64_t request, unsigned char *to)
{
#define IS(name) (strcmp(type, name) == 0)
#define N(key) json_number(f, key)
#define T(key) json_text(f, key)
    if (IS("hello"))
        return encode_hello(to, (unsigned)N("version_min"), (unsigned)N("version_max"), N("features"), T("log"), T("client"));
    if (IS("ping") || IS("status") || IS("cancel"))
        return encode_numbers(to, IS("ping") ? PING : IS("status") ? STATUS : CANCEL, 0, request, NULL, 0);
    if (IS("shm_open"))
        return encode_numbers(to, SHM_OPEN, 0, request, (uint64_t[]){ N("ring_bytes") }, 1);
    if (IS("pad"))
        return encode_numbers(to, PAD, 0, request, NULL, 0);
    if (IS("append"))
        return encode_append(f, request, to);
    if (IS("stream_open"))
        return encode_name(to, STREAM_OPEN, json_flag(f, "create") ? FLAG_CREATE : 0, request, T("name"));
    if (IS("stream_seal") || IS("stream_delete") || IS("stream_stat"))
        return encode_numbers(to, IS("stream_seal") ? STREAM_SEAL : IS("stream_delete") ? STREAM_DELETE : STREAM_STAT, 0,
                              request, (uint64_t[]){ N("stream") }, 1);
    if (IS("stream_trim"))
        return encode_numbers(to, STREAM_TRIM, 0, request, (uint64_t[]){ N("stream"), N("before") }, 2);
    if (IS("credit"))
        return encode_numbers(to, CREDIT, 0, request, (uint64_t[]){ N("bytes") }, 1);
    if (IS("stream_token")) {
        size_t before_bytes, after_bytes;
        unsigned char *before = json_hex(T("old"), &before_bytes), *after = json_hex(T("new"), &after_bytes);
        size_t n = encode_token(to, request, N("stream"), before, before_bytes, after, after_bytes);
        free(before);
        free(after);
        return n;
    }
    if (IS("stream_list"))
        return encode_list(to, request, (uint32_t)N("limit"), T("prefix"), T("after"));
    if (IS("producer_open"))
        return encode_producer_open(to, request, (uint32_t)N("window"), T("name"));
    if (IS("producer_get"))
        return encode_producer_get(to, request, N("id"), T("name"));
    if (IS("producer_remove"))
        return encode_name(to, PRODUCER_REMOVE, 0, request, T("name"));
    if (IS("read"))
        return encode_read(to, json_flag(f, "follow"), request, N("stream"), (unsigned)N("from"), N("value"),
                           N("max_records"), N("credit"));
    if (IS("replay"))
        return encode_numbers(to, REPLAY, json_flag(f, "follow") ? FLAG_FOLLOW : 0, request,
                              (uint64_t[]){ N("position"), N("max_records"), N("credit") }, 3);
    return 0;
}

static void check_welcome(const char *v, const struct json *f, const struct welcome *m)
{
    same(v, f, "not_durable", m->not_durable);
    same(v, f, "read_only", m->read_only);
    same(v, f, "version", m->version);
    same(v, f, "features", m->features);
    same(v, f, "session", m->session);
    same_bytes(v, f, "log", m->log, sizeof m->log);
    same(v, f, "epoch", m->epoch);
    same(v, f, "durable", m->durable);
    same(v, f, "trim", m->trim);
    same(v, f, "max_request_bytes", m->max_request_bytes);
    same(v, f, "max_message_bytes", m->max_message_bytes);
    same(v, f, "max_batch_records", m->max_batch_records);
    same(v, f, "max_batch_bytes", m->max_batch_bytes);
    same(v, f, "max_requests", m->max_requests);
    same(v, f, "max_reads", m->max_reads);
    same(v, f, "heartbeat_ms", m->heartbeat_ms);
    same(v, f, "idle_ms", m->idle_ms);
    same(v, f, "slow_ms", m->slow_ms);
    same_text(v, f, "node", m->node);
    same_text(v, f, "server", m->server);
}

static void check_error(const char *v, const struct json *f, const struct failure *m, uint64_t stream)
{
    uint64_t known = json_number(f, "known");
    same(v, f, "code", (uint64_t)(-m->code - WAL_CODE_BASE));
    same(v, f, "logged", m->logged);
    same(v, f, "entry", m->entry < 0 ? 0 : (uint64_t)m->entry);
    same(v, f, "actual", m->actual);
    same(v, f, "stream", stream);
    same(v, f, "offset", m->offset);
    same(v, f, "position", m->position);
    same_text(v, f, "name", m->stream);
    same_text(v, f, "message", m->message);
    CHECK((m->entry >= 0) == ((known & FLAG_ENTRY) != 0), "%s", v);
    CHECK(m->has_actual == ((known & FLAG_ACTUAL) != 0), "%s", v);
    CHECK(m->has_offset == ((known & FLAG_OFFSET) != 0), "%s", v);
    CHECK(m->has_position == ((known & FLAG_POSITION) != 0), "%s", v);
    CHECK(json_text(f, "hint")[0] == 0 || strcmp(json_text(f, "hint"), m->hint) == 0, "%s: %s", v, m->hint);
}

static void check_stream(const char *v, const struct json *f, const wal_stream_info *m)
{
    same(v, f, "id", m->id);
    same(v, f, "first_offset", m->first_offset);
    same(v, f, "next_offset", m->next_offset);
    same(v, f, "created_ns", (uint64_t)m->created_ns);
    same(v, f, "last_ns", (uint64_t)m->last_ns);
    same(v, f, "sealed", (m->flags & WAL_STREAM_SEALED) != 0);
    same(v, f, "has_token", (m->flags & WAL_STREAM_HAS_TOKEN) != 0);
    same(v, f, "deleted", (m->flags & WAL_STREAM_DELETED) != 0);
    same(v, f, "created", (m->flags & WAL_STREAM_CREATED) != 0);
    same_text(v, f, "name", m->name);
}

static void check_record(const char *v, const struct json *f, const wal_item *m, uint64_t checksum)
{
    same(v, f, "stream", m->stream_id);
    same(v, f, "offset", m->offset);
    same(v, f, "position", m->position);
    same(v, f, "timestamp_ns", (uint64_t)m->timestamp_ns);
    same(v, f, "checksum", checksum);
    same(v, f, "checksum", record_checksum(m));
    same(v, f, "batch_end", (uint64_t)m->batch_end);
    same_bytes(v, f, "headers", m->headers, m->header_bytes);
    same_bytes(v, f, "payload", m->data, m->data_bytes);
}

/* The decoders below say whether the message is well formed; with fields they compare. */
static bool decode_lists(const char *v, const struct header *h, struct scan s, const struct json *f)
{
    uint32_t count, names = 0;
    if (h->type == APPEND_ACK) {
        struct extent x;
        const struct json *e = f != NULL ? json_get(f, "extents")->first : NULL;
        if (!decode_ack(h, &s, &count))
            return false;
        for (uint32_t i = 0; i < count; i++, e = e != NULL ? e->next : NULL) {
            if (!decode_extent(&s, &x))
                return false;
            if (e == NULL)
                continue;
            same(v, e, "request", x.request);
            same(v, e, "stream", x.stream);
            same(v, e, "offset", x.offset);
            same(v, e, "position", x.position);
            same(v, e, "requests", x.requests);
            same(v, e, "records", x.records);
            same(v, e, "step", x.step);
        }
        return done(&s);
    }
    if (h->type == APPEND_RESULT) {
        struct append_result m;
        wal_placed p;
        const struct json *e = f != NULL ? json_get(f, "placed")->first : NULL;
        if (!decode_result(h, &s, &m))
            return false;
        if (f != NULL) {
            same(v, f, "duplicate", m.duplicate);
            same(v, f, "position", m.position);
            same(v, f, "last_sequence", m.last_sequence);
        }
        for (uint32_t i = 0; i < m.placed; i++, e = e != NULL ? e->next : NULL) {
            if (!decode_placed(&s, &p))
                return false;
            if (e != NULL) {
                same(v, e, "stream", p.stream_id);
                same(v, e, "offset", p.first);
                same(v, e, "count", p.count);
            }
        }
        return done(&s);
    }
    if (h->type == STREAM_PAGE) {
        size_t next_bytes;
        wal_stream_info info;
        char next[WAL_MAX_NAME + 1];
        const struct json *e = f != NULL ? json_get(f, "streams")->first : NULL;
        if (!decode_page(h, &s, &count, &next_bytes))
            return false;
        for (uint32_t i = 0; i < count; i++, e = e != NULL ? e->next : NULL) {
            if (!decode_stream(&s, &info))
                return false;
            if (e != NULL)
                check_stream(v, e, &info);
        }
        text(&s, next_bytes, next, sizeof next);
        if (f != NULL)
            same_text(v, f, "next", next);
        return done(&s);
    }
    if (!decode_batches(h, &s, &count, &names))
        return false;
    const struct json *e = f != NULL ? json_get(f, "names")->first : NULL;
    for (uint32_t i = 0; i < names; i++, e = e != NULL ? e->next : NULL) {
        uint64_t stream;
        const unsigned char *name;
        size_t n;
        if (!decode_stream_name(&s, &stream, &name, &n))
            return false;
        if (e != NULL) {
            same(v, e, "stream", stream);
            CHECK(strlen(json_text(e, "name")) == n && memcmp(json_text(e, "name"), name, n) == 0, "%s", v);
        }
    }
    e = f != NULL ? json_get(f, "records")->first : NULL;
    for (uint32_t i = 0; i < count; i++, e = e != NULL ? e->next : NULL) {
        wal_item item = { 0 };
        uint64_t checksum;
        if (!decode_record(&s, &item, &checksum))
            return false;
        if (e != NULL)
            check_record(v, e, &item, checksum);
    }
    return done(&s);
}

static bool decode(const char *v, const struct header *h, struct scan s, const struct json *f)
{
    struct welcome welcome;
    struct failure failure;
    struct producer_info producer;
    struct shm_info shm;
    wal_stream_info info;
    wal_item item = { 0 };
    const unsigned char *json;
    size_t n;
    uint64_t numbers[2];
    switch (h->type) {
    case WELCOME:
        if (!decode_welcome(h, s, &welcome))
            return false;
        if (f != NULL)
            check_welcome(v, f, &welcome);
        return true;
    case GOODBYE:
        if (!decode_goodbye(h, s, &failure))
            return false;
        if (f != NULL) {
            same(v, f, "code", (uint64_t)(-failure.code - WAL_CODE_BASE));
            same_text(v, f, "message", failure.message);
        }
        return true;
    case PONG: case HEARTBEAT:
        if (!decode_numbers(h, s, numbers, 1))
            return false;
        if (f != NULL)
            same(v, f, "durable", numbers[0]);
        return true;
    case STATUS_JSON:
        if (!decode_status(h, s, &json, &n))
            return false;
        if (f != NULL)
            same_bytes(v, f, "json", json, n);
        return true;
    case ERROR_MESSAGE:
        if (!decode_error(h, s, &failure, numbers))
            return false;
        if (f != NULL)
            check_error(v, f, &failure, numbers[0]);
        return true;
    case STREAM_INFO:
        if (!decode_stream_info(h, s, &info))
            return false;
        if (f != NULL)
            check_stream(v, f, &info);
        return true;
    case TRIMMED: case CAUGHT_UP: case END:
        if (!decode_numbers(h, s, numbers, 2))
            return false;
        if (f != NULL) {
            same(v, f, h->type == TRIMMED ? "stream" : "durable", numbers[0]);
            same(v, f, h->type == TRIMMED ? "first_offset" : "next", numbers[1]);
        }
        return true;
    case PRODUCER_INFO:
        if (!decode_producer_info(h, s, &producer))
            return false;
        if (f != NULL) {
            same(v, f, "id", producer.id);
            same(v, f, "last_sequence", producer.last_sequence);
            same(v, f, "window", producer.window);
            same(v, f, "created", producer.created);
            same(v, f, "removed", producer.removed);
            same_text(v, f, "name", producer.name);
        }
        return true;
    case SHM_INFO:
        if (!decode_shm_info(h, s, &shm))
            return false;
        if (f != NULL) {
            same(v, f, "layout", shm.layout);
            same(v, f, "max_message_bytes", shm.max_message_bytes);
            same(v, f, "max_requests", shm.max_requests);
            same(v, f, "ring_bytes", shm.ring_bytes);
            same(v, f, "completion_bytes", shm.completion_bytes);
        }
        return true;
    case GAP:
        if (!decode_gap(h, s, &item))
            return false;
        if (f != NULL) {
            same(v, f, "stream", item.stream_id);
            same(v, f, "from", item.from);
            same(v, f, "to", item.to);
            same(v, f, "kind", (uint64_t)item.gap);
        }
        return true;
    case APPEND_ACK: case APPEND_RESULT: case STREAM_PAGE: case RECORDS: case REPLAY_BATCHES:
        return decode_lists(v, h, s, f);
    }
    return false;
}

/* refused_when_cut decodes every prefix, and the message with 8 bytes more. */
static void refused_when_cut(const char *v, const struct header *h, const unsigned char *body, size_t n)
{
    for (size_t cut = 0; cut < n; cut++) {
        unsigned char *part = malloc(cut > 0 ? cut : 1);
        memcpy(part, body, cut);
        CHECK(!decode(v, h, (struct scan){ .b = part, .n = cut }, NULL), "%s: accepted with %zu of %zu bytes", v, cut, n);
        free(part);
    }
    unsigned char *more = calloc(1, n + 8);
    memcpy(more, body, n);
    CHECK(!decode(v, h, (struct scan){ .b = more, .n = n + 8 }, NULL), "%s: accepted with 8 bytes more", v);
    struct header odd = *h;
    odd.flags |= 1 << 15;
    CHECK(!decode(v, &odd, (struct scan){ .b = more, .n = n }, NULL), "%s: accepted with an unknown flag", v);
    free(more);
}

static void golden_vectors(const char *directory)
{
    static unsigned char out[1 << 16];
    struct json *all = json_read(directory, "vectors.json");
    size_t encoded = 0, decoded = 0;
    for (const struct json *v = all->first; v != NULL; v = v->next) {
        const char *name = json_text(v, "name");
        size_t n;
        unsigned char *bytes = json_hex(json_text(v, "hex"), &n);
        struct header h;
        CHECK(decode_header(bytes, &h) && h.length == n && h.request == json_number(v, "request"), "%s", name);
        size_t written = encode(json_text(v, "type"), json_get(v, "fields"), h.request, out);
        if (h.type < WELCOME) {
            encoded++;
            CHECK(written == n && memcmp(out, bytes, n) == 0, "%s: encodes differently", name);
        } else {
            decoded++;
            struct scan s = { .b = bytes + HEADER_BYTES, .n = n - HEADER_BYTES };
            CHECK(decode(name, &h, s, json_get(v, "fields")), "%s: refused", name);
            refused_when_cut(name, &h, s.b, s.n);
        }
        free(bytes);
    }
    CHECK(encoded >= 20 && decoded >= 18, "%zu encoded, %zu decoded", encoded, decoded);
    printf("golden vectors: %zu encoded, %zu decoded\n", encoded, decoded);
    json_free(all);
}

/* The malformed messages are those of a client: this one refuses each as it would from
 * a sidecar, in its header or by its type. */
static void malformed_vectors(const char *directory)
{
    struct json *all = json_read(directory, "malformed.json");
    for (const struct json *v = all->first; v != NULL; v = v->next) {
        size_t n;
        unsigned char *bytes = json_hex(json_text(v, "hex"), &n);
        struct header h;
        struct scan s = { .b = bytes + HEADER_BYTES, .n = n - HEADER_BYTES };
        CHECK(!decode_header(bytes, &h) || !decode("", &h, s, NULL), "%s: accepted", json_text(v, "name"));
        free(bytes);
    }
    json_free(all);
}

/* The table of errors is the protocol's. */
static void errors(const char *directory)
{
    struct json *all = json_read(directory, "errors.json");
    size_t count = 0;
    for (const struct json *e = all->first; e != NULL; e = e->next) {
        unsigned code = (unsigned)json_number(e, "code");
        if (code == 0)
            continue;
        count++;
        const struct error_info *info = error_info(api(code));
        char text[512];
        snprintf(text, sizeof text, "%s: %s", json_text(e, "name"), json_text(e, "hint"));
        CHECK(info != NULL, "%s is missing", json_text(e, "name"));
        if (info == NULL)
            continue;
        CHECK(strcmp(info->text, text) == 0, "%s", info->text);
        CHECK(info->retriable == json_flag(e, "retriable"), "%s", text);
        CHECK(info->outcome_unknown == json_flag(e, "outcome_unknown"), "%s", text);
        CHECK(strcmp(wal_strerror(api(code)), text) == 0, "%s", text);
    }
    size_t own = 0;
    for (size_t i = 0; i < sizeof error_table / sizeof error_table[0]; i++)
        own += error_table[i].code > WAL_CODE_BASE;
    CHECK(own == count, "the table has %zu codes, not %zu", own, count);
    CHECK(strcmp(wal_strerror(0), "ok") == 0, "%s", wal_strerror(0));
    json_free(all);
}

/* Sums of XXH64 with seed 0, from the algorithm's specification and reference program. */
static void checksums(void)
{
    static const struct { const char *text; uint64_t sum; } known[] = {
        { "", UINT64_C(0xEF46DB3751D8E999) },
        { "a", UINT64_C(0xD24EC4F1A98C6E5B) },
        { "abc", UINT64_C(0x44BC2CF5AD770999) },
        { "xxhash", UINT64_C(0x32DD38952C4BC720) },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct xxhash x;
        xx_begin(&x);
        xx_add(&x, known[i].text, strlen(known[i].text));
        CHECK(xx_sum(&x) == known[i].sum, "%s: %016" PRIx64, known[i].text, xx_sum(&x));
    }
    unsigned char data[300];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7);
    for (size_t n = 0; n <= sizeof data; n++)
        for (size_t cut = 0; cut <= n; cut += 13) {
            struct xxhash whole, parts;
            xx_begin(&whole);
            xx_add(&whole, data, n);
            xx_begin(&parts);
            xx_add(&parts, data, cut);
            xx_add(&parts, data + cut, n - cut);
            CHECK(xx_sum(&whole) == xx_sum(&parts), "%zu bytes cut at %zu", n, cut);
        }
}

/* consume checks what lies in a ring between two positions as the sidecar does, and returns
 * how many messages there are. */
static size_t consume(const struct ring *d, uint64_t from, uint64_t *next)
{
    const unsigned char *ring = d->submission + AREA_HEAD_BYTES;
    size_t count = 0;
    while (from < d->position) {
        size_t at = (size_t)(from & (d->size - 1));
        uint32_t length = load32(ring + at);
        uint16_t type = load16(ring + at + 4);
        CHECK(at + length <= d->size && length % 8 == 0 && length > 0, "%" PRIu32 " bytes at %zu", length, at);
        if (failures > 0)
            return count;
        from += length;
        if (type == PAD) {
            CHECK(at + length == d->size && load16(ring + at + 6) == 0, "a pad of %" PRIu32 " bytes at %zu", length, at);
            continue;
        }
        CHECK(type == APPEND && load64(ring + at + 8) == (*next)++, "message %zu", count);
        count++;
    }
    return count;
}

/* The ring as docs/protocol.md has it: whole messages, pads that end where it does, nothing
 * overwritten before it is free, over many laps. */
static void ring_layout(void)
{
    struct ring d = { .size = MIN_RING_BYTES, .max_message = MIN_RING_BYTES / 4, .bell = -1, .next_id = FIRST_RING_REQUEST };
    static unsigned char message[MIN_RING_BYTES / 4];
    d.submission = aligned_alloc(8, AREA_HEAD_BYTES + d.size);
    d.completion = aligned_alloc(8, COMPLETION_BYTES);
    memset(d.submission, 0, AREA_HEAD_BYTES + d.size);
    memset(d.completion, 0, COMPLETION_BYTES);
    uint64_t next = FIRST_RING_REQUEST, checked = 0;
    for (int lap = 0; lap < 2000 && failures == 0; lap++) {
        size_t put_in = 0;
        for (;;) {
            size_t n = 48 + 8 * (size_t)below(below(4) == 0 ? (sizeof message - 48) / 8 + 1 : 30);
            if (!ring_fits(&d, n))
                break;
            begin_append(message, d.next_id++, true, 1, 2, 3, 1);
            store(message, n, 4);
            ring_put(&d, message, n);
            ring_publish(&d);
            put_in++;
        }
        CHECK(put_in > 0 && d.position - d.free <= d.size, "%zu messages", put_in);
        CHECK(atomic_load(word64(d.submission, SUBMISSION_TAIL)) == d.position, "not published");
        CHECK(consume(&d, checked, &next) == put_in, "lap %d", lap);
        checked = d.position;
        ring_free(&d, d.position);
    }
    CHECK(d.position > 1000 * d.size, "%" PRIu64 " bytes", d.position);
    CHECK(!ring_fits(&d, d.max_message + 8) && ring_fits(&d, d.max_message), "the largest message");
    free(d.submission);
    free(d.completion);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s wire/testdata\n", argv[0]);
        return 2;
    }
    seed(1);
    checksums();
    ring_layout();
    golden_vectors(argv[1]);
    malformed_vectors(argv[1]);
    errors(argv[1]);
    if (failures == 0)
        puts("ok");
    return failures > 0;
}
