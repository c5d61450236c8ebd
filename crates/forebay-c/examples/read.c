/* Reads the first 64 KiB of a file in 16 concurrent requests, and prints a sum.
 *   cc read.c $(pkg-config --cflags --libs forebay) -o read && ./read FILE */
#include <forebay.h>
#include <inttypes.h>
#include <stdio.h>

enum { READS = 16, LEN = 4096 };

static int failed(const char *call, int code) {
    fprintf(stderr, "%s: %s: %s\n", call, fb_code_name(code), fb_error_text());
    return 1;
}

int main(int count, char **arguments) {
    static unsigned char memory[READS][LEN];
    fb_engine *engine;
    fb_file *file;
    fb_op *ops[READS];
    fb_open open = {.size = sizeof open, .access = FB_READ_ONLY, .mode = FB_ADAPTIVE};
    uint64_t sum = 0;
    int code, begun = 0;

    if (count != 2) return fprintf(stderr, "usage: read FILE\n"), 2;
    if ((code = fb_engine_start(NULL, &engine)) != FB_OK) return failed("start", code);
    if ((code = fb_file_open(engine, arguments[1], &open, &file)) != FB_OK) {
        failed("open", code);
        fb_engine_close(engine, NULL);
        return 1;
    }
    /* All are in flight together; each is waited for on this thread. */
    for (int n = 0; n < READS && code == FB_OK; n++) {
        fb_request request = {.size = sizeof request, .file = file, .op = FB_OP_READ};
        request.data = memory[n];
        request.len = LEN;
        request.offset = (uint64_t)n * LEN;
        code = fb_submit(&request, 1, NULL, &ops[n]);
        if (code == FB_OK) begun++;
        else failed("submit", code);
    }
    for (int n = 0; n < begun; n++) {
        fb_outcome outcome = {.size = sizeof outcome};
        int read = fb_op_wait(ops[n], -1, &outcome);
        if (read != FB_OK) code = read, failed("read", read);
        else for (size_t at = 0; at < outcome.bytes; at++) sum += memory[n][at];
        fb_op_free(ops[n]);
    }
    printf("sum %" PRIu64 "\n", sum);
    fb_file_close(file);
    fb_engine_close(engine, NULL);
    return code == FB_OK ? 0 : 1;
}
