/* test_hostile [SECONDS]: a sidecar that answers garbage never crashes the client, makes
 * it read beyond a message, or leaves it waiting for ever. The random part prints its seed
 * and replays from WALSIDECAR_SEED. Run it under the sanitizers. */
#include "../walsidecar.c"

#include <signal.h>
#include <sys/wait.h>

#include "check.h"

/* ---- A sidecar's messages, well formed, to be spoiled --------------------------- */

static size_t put_error(unsigned char *to, uint64_t request, unsigned code, unsigned flags)
{
    struct encoder e = begin(to, ERROR_MESSAGE, flags, request);
    put(&e, code, 2);
    put(&e, 3, 2);
    put(&e, below(5), 4);
    put(&e, below(100), 8);
    put(&e, 1, 8);
    put(&e, 7, 8);
    put(&e, 4096, 8);
    put(&e, 5, 2);
    put(&e, 4, 2);
    put(&e, 0, 4);
    put_bytes(&e, "abcwrongdo it", 12);
    return finish_message(&e);
}

static size_t put_ack(unsigned char *to, uint64_t request, uint32_t requests, uint32_t records)
{
    struct encoder e = begin(to, APPEND_ACK, 0, 0);
    put(&e, 1, 8);
    put(&e, request, 8);
    put(&e, 1, 8);
    put(&e, below(1000), 8);
    put(&e, 4096, 8);
    put(&e, requests, 4);
    put(&e, records, 4);
    put(&e, 160, 8);
    return finish_message(&e);
}

static size_t put_result(unsigned char *to, uint64_t request, uint32_t placed, unsigned flags)
{
    struct encoder e = begin(to, APPEND_RESULT, flags, request);
    put(&e, 4096, 8);
    put(&e, 9, 8);
    put(&e, placed, 8);
    for (uint32_t i = 0; i < placed; i++) {
        put(&e, 1 + below(3), 8);
        put(&e, below(100), 8);
        put(&e, 1, 8);
    }
    return finish_message(&e);
}

static void put_stream(struct encoder *e, const char *name)
{
    for (int i = 0; i < 5; i++)
        put(e, 1 + below(9), 8);
    put(e, below(16), 2);
    put(e, strlen(name), 2);
    put(e, 0, 4);
    put_bytes(e, name, strlen(name));
    put_padding(e);
}

static size_t put_records(unsigned char *to, uint64_t request, bool replay, uint64_t offset)
{
    struct encoder e = begin(to, replay ? REPLAY_BATCHES : RECORDS, 0, request);
    uint32_t count = (uint32_t)below(4);
    put(&e, count, 4);
    put(&e, replay ? 1 : 0, 4);
    if (replay) {
        put(&e, 1, 8);
        put(&e, 6, 8);
        put_bytes(&e, "orders", 6);
        put_padding(&e);
    }
    for (uint32_t i = 0; i < count; i++) {
        wal_item item = { .stream_id = 1, .offset = offset + i, .position = 4096 + 8 * below(3), .timestamp_ns = 5,
                          .data = "payload", .data_bytes = below(8),
                          .headers = "\1\0\1\0\1\0\0\0kv", .header_bytes = below(2) * 10 };
        put(&e, item.stream_id, 8);
        put(&e, item.offset, 8);
        put(&e, item.position, 8);
        put(&e, (uint64_t)item.timestamp_ns, 8);
        put(&e, record_checksum(&item), 8);
        put(&e, item.data_bytes, 4);
        put(&e, item.header_bytes, 2);
        put(&e, below(2), 2);
        put_bytes(&e, item.headers, item.header_bytes);
        put_bytes(&e, item.data, item.data_bytes);
        put_padding(&e);
    }
    return finish_message(&e);
}

static size_t put_welcome(unsigned char *to, uint32_t idle_ms, uint64_t features)
{
    struct encoder e = begin(to, WELCOME, 0, 0);
    put(&e, VERSION, 2);
    put(&e, 4, 2);
    put(&e, 4, 4);
    put(&e, features, 8);
    put(&e, 1, 8);
    put_bytes(&e, "0123456789abcdef", 16);
    put(&e, 1, 8);
    put(&e, 4096, 8);
    put(&e, 0, 8);
    put(&e, 1 << 20, 8);
    put(&e, MAX_MESSAGE_BYTES, 4);
    put(&e, 4096, 4);
    put(&e, 1 << 20, 4);
    put(&e, 64, 4);
    put(&e, 8, 4);
    put(&e, 5000, 4);
    put(&e, idle_ms, 4);
    put(&e, 10000, 4);
    put_bytes(&e, "nodetest", 8);
    return finish_message(&e);
}

static size_t put_producer(unsigned char *to, uint64_t request, uint64_t id)
{
    struct encoder e = begin(to, PRODUCER_INFO, 0, request);
    put(&e, id, 8);
    put(&e, below(4), 8);
    put(&e, 64, 8);
    return finish_message(&e);
}

/* answer makes some message that could come; request is one that the client sent. */
static size_t answer(unsigned char *to, uint64_t request)
{
    static const unsigned codes[] = { 1, 2, 10, 20, 21, 22, 30, 33, 34, 35, 36, 43, 50, 55, 60, 61, 999 };
    static const enum type marks[] = { CAUGHT_UP, END, TRIMMED };
    uint64_t numbers[2] = { below(9000), below(100) };
    struct encoder e;
    switch (below(14)) {
    case 0: case 1: return put_ack(to, request, 1 + (uint32_t)below(3), 1);
    case 2: return put_result(to, request, (uint32_t)below(4), (unsigned)below(2));
    case 3: case 4: return put_error(to, request, codes[below(sizeof codes / sizeof codes[0])], (unsigned)below(64));
    case 5: case 6: return put_records(to, request, below(2) == 0, below(4));
    case 7: return encode_numbers(to, marks[below(3)], 0, request, numbers, 2);
    case 8: return encode_numbers(to, below(2) == 0 ? PONG : HEARTBEAT, 0, request, numbers, 1);
    case 9: return put_producer(to, request, below(3));
    case 10: return put_welcome(to, 300000, 0);
    case 11:
        e = begin(to, GAP, 0, request);
        put(&e, below(2), 8);
        put(&e, below(10), 8);
        put(&e, below(20), 8);
        put(&e, below(6), 8);
        return finish_message(&e);
    case 12:
        e = begin(to, STREAM_INFO, 0, request);
        put_stream(&e, "orders");
        return finish_message(&e);
    }
    e = begin(to, STREAM_PAGE, 0, request);
    put(&e, 2, 4);
    put(&e, 6, 4);
    put_stream(&e, "a");
    put_stream(&e, "orders");
    put_bytes(&e, "orders", 6);
    return finish_message(&e);
}

static void spoil(unsigned char *message, size_t n)
{
    if (below(3) > 0)
        return;
    for (uint64_t times = 1 + below(4); times > 0; times--) {
        size_t at = (size_t)below(n);
        message[at] = below(2) == 0 ? (unsigned char)chance() : (unsigned char)(message[at] ^ 1 << below(8));
    }
}

/* ---- The fuzz loop: messages put straight into a client without a socket ------------- */

static uint64_t callbacks;

static void count_callback(wal *w, wal_ticket ticket, const wal_result *r, void *opaque)
{
    (void)w;
    (void)ticket;
    callbacks++;
    ++*(uint64_t *)opaque;
    CHECK(r->placed_count == 0 || r->placed != NULL, "no places");
}

/* revive gives a client whose connection was ended another one. */
static void revive(wal *w)
{
    if (w->state == UP || w->ended != 0)
        return;
    w->next_id = 1;
    w->offered = (struct welcome){ .version = VERSION, .max_request_bytes = 1 << 20, .max_message_bytes = MAX_MESSAGE_BYTES,
                                   .max_requests = 64, .idle_ms = 300000 };
    struct producer_info info = { .id = 7 + below(100), .window = 64 };
    install(w, below(2) == 0 && w->producer.id != 0 ? &info : NULL);
}

static uint64_t submissions, answers;

/* use does what a program does, waiting for nothing. */
static void use(wal *w, wal_read **reads, size_t count, wal_ticket *ticket)
{
    static const char *const streams[] = { "orders", "payments", "audit" };
    wal_entry batch[3] = { { .stream = streams[below(3)] }, { .stream = streams[below(3)] }, { .stream = streams[below(3)] } };
    wal_append_opts o = { .size = sizeof o, .done = count_callback, .opaque = &answers };
    wal_read_opts ro = { .size = sizeof ro, .follow = 1, .caught_up = 1, .read_ahead = 4096, .limit = below(2) * 50 };
    wal_item item;
    wal_result result;
    size_t at = (size_t)below(count);
    if (below(4) == 0) {
        o.producer = "lsn";
        o.sequence = ++submissions;
        submissions--;
    }
    switch (below(7)) {
    case 0: case 1:
        submissions += wal_try_append(w, streams[below(3)], "payload", 7, &o, NULL) == 0;
        break;
    case 2:
        submissions += wal_submit_batch(w, batch, 3, &o, 0, NULL) == 0;
        break;
    case 3:
        if (*ticket == 0)
            wal_try_append(w, streams[below(3)], "payload", 7, NULL, ticket);
        else if (wal_wait(w, *ticket, 0, &result) != -ETIMEDOUT)
            *ticket = 0;
        break;
    case 4:
        if (reads[at] == NULL && w->ended == 0)
            wal_replay_open(w, 0, &ro, &reads[at]);
        if (reads[at] != NULL && at % 2 == 0) { /* as if it was of a stream */
            reads[at]->replay = false;
            reads[at]->stream_id = 1;
        }
        break;
    case 5:
        if (reads[at] != NULL && below(8) == 0) {
            wal_read_close(reads[at]);
            reads[at] = NULL;
        }
        break;
    }
    for (size_t i = 0; i < count; i++)
        while (reads[i] != NULL && wal_next(reads[i], 0, &item) > 0) {
            size_t cursor = 0;
            wal_header h;
            while (wal_header_next(&item, &cursor, &h) == 1)
                continue;
        }
}

/* feed hands the client n bytes as if they had come. A whole message goes to its handler in
 * memory of exactly its size as often, so that sanitizers see every byte beyond it. */
static void feed(wal *w, const unsigned char *bytes, size_t n)
{
    struct header h;
    if (w->in_length == 0 && n >= HEADER_BYTES && decode_header(bytes, &h) && h.length == n && below(2) == 0) {
        size_t body = n - HEADER_BYTES;
        unsigned char *exact = malloc(body > 0 ? body : 1);
        memcpy(exact, bytes + HEADER_BYTES, body);
        if (!(handle(w, &h, (struct scan){ .b = exact, .n = body }) && !w->drop) && w->ended == 0)
            disconnected(w);
        free(exact);
        return;
    }
    if (w->in_length + n > w->in_capacity)
        return;
    memcpy(w->in + w->in_length, bytes, n);
    w->in_length += n;
    if (!handle_arrived(w) && w->ended == 0)
        disconnected(w);
}

static void fuzz(double seconds)
{
    static unsigned char message[1 << 16];
    int64_t until = clock_ns() + (int64_t)(seconds * 1e9);
    uint64_t rounds = 0, clients = 0;
    while (clock_ns() < until && failures == 0) {
        wal_opts o = { .size = sizeof o, .in_flight = 16, .wait_while_full = below(2) == 0, .in_flight_bytes = 1 << 16 };
        wal *w = new_client("/nonexistent/socket", &o);
        wal_read *reads[4] = { NULL };
        wal_ticket ticket = 0;
        submissions = answers = 0;
        w->reconnect_at = NEVER;
        w->now = clock_ns();
        clients++;
        for (int i = 0; i < 2000 && w->ended == 0; i++, rounds++) {
            revive(w);
            use(w, reads, 4, &ticket);
            uint64_t request = w->next_id > 1 ? 1 + below(w->next_id - 1) : 1;
            if (below(2) == 0 && flight_length(&w->flight) > 0)
                request = flight_at(&w->flight, w->flight.next)->id;
            size_t n = answer(message, request);
            spoil(message, n);
            if (below(20) == 0)
                n = 1 + (size_t)below(n); /* the rest never comes */
            feed(w, message, n);
            w->now += 20 * MS;
            run_timers(w);
            if (w->state == DOWN)
                w->reconnect_at = NEVER;
            int rc = wal_poll(w, 0);
            CHECK(rc >= 0 || w->ended != 0, "poll: %s", wal_strerror(rc));
            CHECK(wal_in_flight(w) <= 16, "%zu in flight", wal_in_flight(w));
        }
        wal_cancel(w);
        while (wal_poll(w, 0) > 0)
            continue;
        CHECK(submissions == answers, "%" PRIu64 " submissions, %" PRIu64 " callbacks", submissions, answers);
        CHECK(wal_close(w) == 0, "close");
    }
    printf("fuzz: %" PRIu64 " rounds, %" PRIu64 " clients, %" PRIu64 " callbacks\n", rounds, clients, callbacks);
}

/* Arbitrary bytes in every decoder: each either refuses them or stays inside. */
static void garbage(int rounds)
{
    for (int i = 0; i < rounds; i++) {
        size_t n = (size_t)below(200);
        unsigned char *b = malloc(HEADER_BYTES + n);
        for (size_t k = 0; k < HEADER_BYTES + n; k++)
            b[k] = below(3) == 0 ? (unsigned char)chance() : 0;
        wal_opts o = { .size = sizeof o };
        wal *w = new_client("/nonexistent/socket", &o);
        w->now = 1;
        w->reconnect_at = NEVER;
        if (below(2) == 0)
            revive(w);
        else
            w->state = INTRODUCING;
        store(b, (HEADER_BYTES + n) & ~(size_t)7, 4);
        store(b + 4, 60 + below(45), 2);
        feed(w, b, HEADER_BYTES + n);
        wal_close(w);
        free(b);
    }
}

/* ---- A hostile sidecar behind a real socket ------------------------------------------- */

/* hand_over answers ShmOpen with areas that are not what they should be: too small (4), not
 * sealed (5), without heads (6), or with one descriptor missing (7). */
static void hand_over(int fd, int way)
{
    unsigned char message[64];
    struct encoder e = begin(message, SHM_INFO, 0, 1);
    put(&e, LAYOUT, 4);
    put(&e, MIN_RING_BYTES / 4, 4);
    put(&e, 64, 8);
    put(&e, MIN_RING_BYTES, 8);
    put(&e, COMPLETION_BYTES, 8);
    struct iovec segment = { message, finish_message(&e) };
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FILES * sizeof(int))];
    } control;
    size_t count = way == 7 ? 2 : FILES;
    int files[FILES];
    for (size_t i = 0; i < count; i++) {
        files[i] = memfd_create("area", MFD_ALLOW_SEALING);
        if (ftruncate(files[i], way == 4 ? 4096 : i == 0 ? AREA_HEAD_BYTES + MIN_RING_BYTES : COMPLETION_BYTES) < 0)
            _exit(1);
        if (way != 5)
            fcntl(files[i], F_ADD_SEALS, F_SEAL_SHRINK);
    }
    struct msghdr m = { .msg_iov = &segment, .msg_iovlen = 1, .msg_control = &control,
                        .msg_controllen = CMSG_SPACE(count * sizeof(int)) };
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(c), files, count * sizeof(int));
    if (sendmsg(fd, &m, MSG_NOSIGNAL) < 0)
        _exit(1);
    for (size_t i = 0; i < count; i++)
        close(files[i]);
}

/* open_files counts the descriptors of this process. */
static int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* serve accepts clients for ever, and lies to them in the given way. */
static void serve(int listener, int way)
{
    static unsigned char in[1 << 16], out[1 << 16];
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            _exit(0);
        if (read(fd, in, sizeof in) <= 0) {
            close(fd);
            continue;
        }
        size_t n = put_welcome(out, way == 2 ? 1 : 300000, way >= 4 ? FEATURE_SHM : 0);
        switch (way) {
        case 0: /* noise in the place of Welcome */
            for (size_t i = 0; i < n; i++)
                out[i] = (unsigned char)chance();
            break;
        case 1: /* a message that claims to be longer than any */
            store(out, UINT32_MAX & ~UINT32_C(7), 4);
            break;
        case 3: /* half a Welcome, then silence */
            n /= 2;
            break;
        }
        if (write(fd, out, n) < 0 || way < 2) {
            close(fd);
            continue;
        }
        if (way >= 4 && read(fd, in, sizeof in) > 0)
            hand_over(fd, way);
        while (way != 3 && read(fd, in, sizeof in) > 0) { /* answers that nobody asked for */
            uint64_t request = 1 + below(3);
            n = answer(out, request);
            spoil(out, n);
            if (write(fd, out, n) < 0)
                break;
        }
        if (way == 3)
            pause();
        close(fd);
    }
}

static void hostile_socket(int way)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    snprintf(a.sun_path, sizeof a.sun_path, "/tmp/walsidecar-hostile-%ld-%d", (long)getpid(), way);
    unlink(a.sun_path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&a, sizeof a) == 0 && listen(listener, 8) == 0, "%s", a.sun_path);
    pid_t child = fork();
    if (child == 0)
        serve(listener, way);
    close(listener);
    char why[256] = "";
    wal_opts o = { .size = sizeof o, .open_timeout_ms = 300, .error_text = why, .error_text_bytes = sizeof why };
    wal *w;
    int files = open_files();
    int64_t from = clock_ns();
    if (way >= 4) {
        wal_opts insists = o;
        insists.door = WAL_DOOR_SHM;
        CHECK(wal_open(&w, a.sun_path, &insists) == -WAL_UNSUPPORTED && w == NULL, "way %d: %s", way, why);
    }
    int rc = wal_open(&w, a.sun_path, &o);
    if (way >= 4) { /* what cannot be used is as good as none */
        wal_log_info info = { .shared_memory = 1 };
        CHECK(rc == 0, "way %d: %s", way, why);
        if (rc == 0)
            wal_get_log_info(w, &info);
        CHECK(!info.shared_memory, "way %d: it uses the memory", way);
    }
    CHECK(way < 2 || way == 3 ? rc < 0 && w == NULL && why[0] != 0 : rc == 0, "way %d: %s", way, wal_strerror(rc));
    for (int i = 0; rc == 0 && i < 30; i++) {
        wal_stream_info infos[4];
        wal_append(w, "orders", "x", 1, NULL, 10, NULL);
        wal_stream_list(w, "", "", 5, infos, 4);
        wal_stream_stat(w, "orders", 5, infos);
        wal_poll(w, 5);
    }
    CHECK(clock_ns() - from < 20 * SECOND, "way %d took too long", way);
    wal_close(w);
    CHECK(open_files() == files, "way %d: %d descriptors more", way, open_files() - files);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    unlink(a.sun_path);
}

/* A log that does not have what it had answered ends the client: what it hears about its
 * producer (0: it is behind; 1: it is unknown), or in Welcome (2). */
static void log_that_went_back(int way)
{
    unsigned char message[1 << 10];
    wal_opts o = { .size = sizeof o };
    wal *w = new_client("/nonexistent/socket", &o);
    struct header h;
    size_t n;
    w->reconnect_at = NEVER;
    w->now = clock_ns();
    w->known = true;
    memcpy(w->limits.log, "0123456789abcdef", sizeof w->limits.log);
    w->producer = (struct session_producer){ .id = 7, .next = 10, .used_up = 9, .window = 64 };
    w->state = ASKING_PRODUCER;
    w->next_id = 2;
    switch (way) {
    case 0:
        n = put_producer(message, 1, 7); /* its last sequence is below 4 */
        break;
    case 1:
        n = put_error(message, 1, WAL_PRODUCER_EXPIRED - WAL_CODE_BASE, 0);
        break;
    default:
        w->state = INTRODUCING;
        saw_durable(w, 8192); /* Welcome tells 4096 */
        n = put_welcome(message, 300000, 0);
    }
    CHECK(decode_header(message, &h) && h.length == n, "way %d: not a message", way);
    CHECK(!handle(w, &h, (struct scan){ .b = message + HEADER_BYTES, .n = n - HEADER_BYTES }), "way %d: it goes on", way);
    CHECK(w->ended == -WAL_LOG_WENT_BACK, "way %d: %s", way, wal_strerror(w->ended));
    int rc = wal_append(w, "orders", "x", 1, NULL, 0, NULL);
    CHECK(rc == -WAL_LOG_WENT_BACK, "way %d, afterwards: %s", way, wal_strerror(rc));
    wal_close(w);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 3;
    seed((uint64_t)clock_ns());
    signal(SIGPIPE, SIG_IGN);
    for (int way = 0; way < 8; way++)
        hostile_socket(way);
    for (int way = 0; way < 3; way++)
        log_that_went_back(way);
    garbage(2000);
    fuzz(seconds);
    if (failures == 0)
        puts("ok");
    return failures > 0;
}
