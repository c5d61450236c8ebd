/* Operations that are cancelled, and an engine that is closed with operations in flight: each ends once, and afterwards its memory
 * is the program's: nothing writes to it any more. */
#include <stdatomic.h>

#include "check.h"

enum { OPS = 48, LEN = 256 << 10, MOMENTS = 20000 };

struct call {
    atomic_int calls;
    int code;
};

static void note(void *user, fb_op *op, const fb_outcome *outcome) {
    struct call *call = user;
    (void)op;
    CHECK((outcome->code == FB_OK) == (outcome->text == NULL));
    call->code = outcome->code;
    atomic_fetch_add(&call->calls, 1);
}

static int is_end(int code) {
    return code == FB_OK || code == FB_CANCELLED || code == FB_ENGINE_CLOSED || code == FB_FILE_CLOSED;
}

static fb_request read_of(fb_file *file, unsigned char *memory, int n) {
    return read_request(file, memory + (size_t)n * LEN, LEN, (uint64_t)n * LEN);
}

static void mark(unsigned char *memory) { memset(memory, 0xa5, (size_t)OPS * LEN); }

static void check_mark(const unsigned char *memory) {
    for (size_t at = 0; at < (size_t)OPS * LEN; at++) CHECK(memory[at] == 0xa5);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    const char *folder = arguments[1];
    fb_engine *engine = start_engine();
    fb_file *file = filled_file(engine, folder, "data", (size_t)OPS * LEN);
    unsigned char *memory = pages((size_t)OPS * LEN);
    fb_op *ops[OPS];

    /* Cancelled immediately: without a notice, and with one. */
    for (int n = 0; n < OPS; n++) {
        fb_request request = read_of(file, memory, n);
        OK(fb_submit(&request, 1, NULL, &ops[n]));
        OK(fb_op_cancel(ops[n]));
        OK(fb_op_cancel(ops[n]));
    }
    for (int n = 0; n < OPS; n++) {
        CHECK(is_end(fb_op_wait(ops[n], -1, NULL)));
        OK(fb_op_free(ops[n]));
    }
    mark(memory);
    struct call calls[OPS];
    fb_notice notice = {.size = sizeof notice, .callback = note};
    for (int n = 0; n < OPS; n++) {
        fb_request request = read_of(file, memory, n);
        atomic_init(&calls[n].calls, 0);
        notice.user = &calls[n];
        OK(fb_submit(&request, 1, &notice, &ops[n]));
        OK(fb_op_cancel(ops[n]));
    }
    for (int n = 0; n < OPS; n++) {
        CHECK(is_end(fb_op_wait(ops[n], -1, NULL)));
        OK(fb_op_free(ops[n]));
    }
    mark(memory);

    /* Cancelled at any moment of the read, that of its end among them: a shard that had just gone to sleep kept the memory of the
     * operation until the next one, and the wait went on for ever. */
    for (int n = 0; n < MOMENTS; n++) {
        fb_request request = read_request(file, memory, 16 << 10, (uint64_t)(n % OPS) * LEN);
        OK(fb_submit(&request, 1, NULL, &ops[0]));
        for (volatile int turn = 0; turn < n % 997 * 200; turn++) {
        }
        OK(fb_op_cancel(ops[0]));
        CHECK(is_end(fb_op_wait(ops[0], -1, NULL)));
        OK(fb_op_free(ops[0]));
    }
    mark(memory);

    /* A file is closed while its operations run: they end by themselves. */
    fb_file *other = open_file(engine, folder, "data", FB_READ_ONLY);
    for (int n = 0; n < OPS; n++) {
        fb_request request = read_of(other, memory, n);
        OK(fb_submit(&request, 1, NULL, &ops[n]));
    }
    OK(fb_file_close(other));
    for (int n = 0; n < OPS; n++) {
        CHECK(is_end(fb_op_wait(ops[n], -1, NULL)));
        OK(fb_op_free(ops[n]));
    }
    mark(memory);

    /* The engine is closed: those with a notice, and those that nobody has waited for. */
    struct call last[OPS];
    for (int n = 0; n < OPS; n++) {
        fb_request request = read_of(file, memory, n);
        atomic_init(&last[n].calls, 0);
        notice.user = &last[n];
        OK(fb_submit(&request, 1, n % 2 == 0 ? &notice : NULL, &ops[n]));
    }
    fb_close_report report = {.size = sizeof report};
    OK(fb_engine_close(engine, &report));
    CHECK(report.leaked_operations == 0 && report.lost_memory == 0);
    mark(memory);
    for (int n = 0; n < OPS; n++) {
        int code = fb_op_wait(ops[n], 0, NULL);
        CHECK(is_end(code));
        CHECK(n % 2 != 0 || (atomic_load(&last[n].calls) == 1 && last[n].code == code));
        CHECK(atomic_load(&calls[n].calls) == 1);
        OK(fb_op_free(ops[n]));
    }

    /* Files of a closed engine can still be closed, and do nothing else. */
    fb_op *op = NULL;
    fb_request request = read_of(file, memory, 0);
    FAILS(FB_ENGINE_CLOSED, fb_submit(&request, 1, NULL, &op));
    FAILS(FB_ENGINE_CLOSED, fb_read(file, memory, 4096, 0, NULL));
    int code = fb_file_close(file);
    CHECK(is_end(code));
    check_mark(memory);
    free(memory);
    puts("ok");
    return 0;
}
