/* Operations that are submitted: waited for, announced by eventfd, by callback, and batches. */
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "check.h"

enum { READS = 64, LEN = 1 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int ended, on_one_thread = 1;
static pthread_t callback_thread;
static fb_engine *the_engine;
static fb_file *the_file;
static unsigned char *chained;

static void count(void *user, fb_op *op, const fb_outcome *outcome) {
    (void)op;
    OK(outcome->code);
    CHECK(outcome->size == sizeof *outcome && outcome->text == NULL && outcome->bytes == *(size_t *)user);
    pthread_mutex_lock(&lock);
    if (ended++ == 0) callback_thread = pthread_self();
    on_one_thread &= pthread_equal(callback_thread, pthread_self()) != 0;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wait_for(int number) {
    pthread_mutex_lock(&lock);
    while (ended < number) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

/* A callback submits the next read, and is refused what waits or destroys. */
static void chain(void *user, fb_op *op, const fb_outcome *outcome) {
    static size_t len = 4096;
    uint64_t bytes;
    OK(outcome->code);
    FAILS(FB_IN_CALLBACK, fb_op_wait(op, -1, NULL));
    FAILS(FB_IN_CALLBACK, fb_op_free(op));
    FAILS(FB_IN_CALLBACK, fb_read(the_file, chained, 1, 0, &bytes));
    FAILS(FB_IN_CALLBACK, fb_file_close(the_file));
    FAILS(FB_IN_CALLBACK, fb_engine_close(the_engine, NULL));
    CHECK(strstr(fb_error_text(), "fb_engine_close") != NULL);
    fb_request request = read_request(the_file, chained, len, 8192);
    fb_notice notice = {.size = sizeof notice, .callback = count, .user = &len};
    OK(fb_submit(&request, 1, &notice, NULL));
    *(int *)user = 1;
}

static void waits(fb_file *file) {
    fb_op *ops[READS];
    unsigned char *memory = pages(READS * 16384);
    for (int n = 0; n < READS; n++) {
        fb_request request = read_request(file, memory + n * 16384, 16384, n * 16384u);
        OK(fb_submit(&request, 1, NULL, &ops[n]));
    }
    for (int n = READS - 1; n >= 0; n--) {
        fb_outcome outcome = {.size = sizeof outcome};
        OK(fb_op_wait(ops[n], -1, &outcome));
        CHECK(outcome.code == FB_OK && outcome.bytes == 16384);
        OK(fb_op_wait(ops[n], 0, NULL)); /* once more */
        OK(fb_op_part(ops[n], 0, &outcome));
        OK(fb_op_free(ops[n]));
    }
    check_bytes(memory, READS * 16384, 0);

    /* A failure belongs to its operation. */
    fb_op *op = NULL;
    fb_request request = read_request(file, memory, 4096, UINT64_MAX / 2);
    request.op = FB_OP_WRITE;
    OK(fb_submit(&request, 1, NULL, &op));
    fb_outcome outcome = {.size = sizeof outcome};
    int code = fb_op_wait(op, -1, &outcome);
    CHECK(code != FB_OK && code == outcome.code && outcome.text != NULL);
    CHECK(strcmp(outcome.text, fb_error_text()) == 0);
    OK(fb_op_free(op));

    /* Nobody could see the end. */
    FAILS(FB_INVALID_INPUT, fb_submit(&request, 1, NULL, NULL));
    FAILS(FB_INVALID_INPUT, fb_submit(&request, 0, NULL, &op));
    free(memory);
}

static void event_fds(fb_file *file) {
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(fd > 0);
    unsigned char *memory = pages(READS * 4096);
    fb_op *ops[READS];
    fb_notice notice = {.size = sizeof notice, .eventfd = fd};
    for (int n = 0; n < READS; n++) {
        fb_request request = read_request(file, memory + n * 4096, 4096, n * 4096u);
        OK(fb_submit(&request, 1, &notice, &ops[n]));
    }
    uint64_t seen = 0;
    while (seen < READS) {
        struct pollfd waiting = {.fd = fd, .events = POLLIN};
        uint64_t more = 0;
        CHECK(poll(&waiting, 1, -1) == 1);
        if (read(fd, &more, sizeof more) == sizeof more) seen += more;
    }
    CHECK(seen == READS);
    for (int n = 0; n < READS; n++) {
        OK(fb_op_wait(ops[n], 0, NULL));
        OK(fb_op_free(ops[n]));
    }
    check_bytes(memory, READS * 4096, 0);
    close(fd);

    /* A program without free descriptors submitted with the -1 of eventfd(2). That counted as no eventfd, and its loop waited for ever. */
    fb_request request = read_request(file, memory, 4096, 0);
    notice.eventfd = -1;
    FAILS(FB_INVALID_INPUT, fb_submit(&request, 1, &notice, &ops[0]));
    CHECK(strstr(fb_error_text(), "eventfd") != NULL);
    free(memory);
}

static void callbacks(fb_file *file) {
    static size_t len = 4096;
    unsigned char *memory = pages(READS * 4096);
    fb_notice notice = {.size = sizeof notice, .callback = count, .user = &len};
    ended = 0;
    for (int n = 0; n < READS; n++) {
        fb_request request = read_request(file, memory + n * 4096, 4096, n * 4096u);
        OK(fb_submit(&request, 1, &notice, NULL));
    }
    wait_for(READS);
    check_bytes(memory, READS * 4096, 0);
    CHECK(!pthread_equal(callback_thread, pthread_self()));

    int was_called = 0;
    ended = 1; /* the thread is known */
    chained = memory;
    fb_request request = {.size = sizeof request, .file = file, .data = memory, .len = 4096, .op = FB_OP_READ};
    fb_notice first = {.size = sizeof first, .callback = chain, .user = &was_called};
    OK(fb_submit(&request, 1, &first, NULL));
    wait_for(2);
    CHECK(was_called && on_one_thread);
    check_bytes(memory, 4096, 8192);
    free(memory);
}

static void batches(fb_file *file) {
    fb_request requests[READS];
    fb_outcome outcome = {.size = sizeof outcome};
    unsigned char *memory = pages(READS * 4096);
    fb_op *op = NULL;
    memset(requests, 0, sizeof requests);
    for (int n = 0; n < READS; n++) {
        requests[n] = read_request(file, memory + n * 4096, 1000, n * 16000u);
    }
    requests[READS - 1].offset = LEN - 10; /* the file ends in it */
    OK(fb_submit(requests, READS, NULL, &op));
    OK(fb_op_wait(op, -1, &outcome));
    CHECK(outcome.bytes == (READS - 1) * 1000 + 10);
    for (int n = 0; n < READS; n++) {
        size_t len = n == READS - 1 ? 10 : 1000;
        OK(fb_op_part(op, n, &outcome));
        CHECK(outcome.code == FB_OK && outcome.bytes == len);
        check_bytes(memory + n * 4096, len, requests[n].offset);
    }
    FAILS(FB_INVALID_INPUT, fb_op_part(op, READS, &outcome));
    OK(fb_op_free(op));

    /* Writes of whole pages, with a notice. */
    static size_t all = READS * 4096;
    fb_notice notice = {.size = sizeof notice, .callback = count, .user = &all};
    for (int n = 0; n < READS; n++) {
        requests[n].op = FB_OP_WRITE;
        requests[n].len = 4096;
        requests[n].offset = (READS - 1 - n) * 4096u;
        requests[n].durability = FB_DURABLE_DATA;
        memset(memory + n * 4096, n, 4096);
    }
    ended = 1;
    OK(fb_submit(requests, READS, &notice, NULL));
    wait_for(2);
    unsigned char page[4096];
    OK(fb_read(file, page, sizeof page, 4096, NULL));
    CHECK(page[0] == READS - 2 && page[4095] == READS - 2);

    /* Writes of a batch have no order, so they must not overlap: none of them is made. */
    requests[1].offset = requests[0].offset + 512;
    OK(fb_submit(requests, READS, NULL, &op));
    FAILS(FB_INVALID_INPUT, fb_op_wait(op, -1, NULL));
    OK(fb_op_free(op));

    /* A batch is of one kind. */
    requests[1].op = FB_OP_READ;
    FAILS(FB_INVALID_INPUT, fb_submit(requests, 2, NULL, &op));
    free(memory);
}

/* A program checkpointed 32 MiB as one batch of writes on an engine with 16 MiB of memory. fb_submit refused it with
 * FB_MEMORY_EXHAUSTED, whose sentence advises to try again, at each try: the whole batch had to fit into the engine's memory. */
static void long_batch(const char *folder) {
    enum { PART = 512 << 10 };
    fb_engine *engine = start_engine_with(16u << 20, 1u << 20);
    fb_file *file = open_file(engine, folder, "long", FB_CREATE);
    unsigned char *memory = pages((size_t)READS * PART);
    fb_request requests[READS];
    fb_outcome outcome = {.size = sizeof outcome};
    fb_op *op = NULL;
    for (size_t at = 0; at < (size_t)READS * PART; at++) memory[at] = byte_at(at);
    for (int n = 0; n < READS; n++) {
        requests[n] = read_request(file, memory + (size_t)n * PART, PART, (uint64_t)n * PART);
        requests[n].op = FB_OP_WRITE;
    }
    OK(fb_submit(requests, READS, NULL, &op));
    OK(fb_op_wait(op, -1, &outcome));
    CHECK(outcome.bytes == (uint64_t)READS * PART);
    OK(fb_op_free(op));

    /* The same places as one batch of reads. */
    memset(memory, 0, (size_t)READS * PART);
    for (int n = 0; n < READS; n++) requests[n].op = FB_OP_READ;
    OK(fb_submit(requests, READS, NULL, &op));
    OK(fb_op_wait(op, -1, &outcome));
    CHECK(outcome.bytes == (uint64_t)READS * PART);
    OK(fb_op_free(op));
    check_bytes(memory, (size_t)READS * PART, 0);
    OK(fb_file_close(file));
    OK(fb_engine_close(engine, NULL));
    free(memory);
}

int main(int count_of, char **arguments) {
    CHECK(count_of == 2);
    the_engine = start_engine();
    the_file = filled_file(the_engine, arguments[1], "data", LEN);
    waits(the_file);
    event_fds(the_file);
    callbacks(the_file);
    batches(the_file);
    long_batch(arguments[1]);
    OK(fb_file_close(the_file));
    OK(fb_engine_close(the_engine, NULL));
    puts("ok");
    return 0;
}
