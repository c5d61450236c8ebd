/* A forked child: the parent's handles are refused there, its own engine works, and the parent continues. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

int main(int count, char **arguments) {
    CHECK(count == 2);
    fb_engine *engine = start_engine();
    fb_file *file = filled_file(engine, arguments[1], "data", 65536);
    unsigned char *memory = pages(65536);
    fb_op *op = NULL;
    fb_request request = {.size = sizeof request, .file = file, .data = memory, .len = 65536, .op = FB_OP_READ};
    OK(fb_submit(&request, 1, NULL, &op));

    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        unsigned char own[4096];
        uint64_t number;
        fb_op *other = NULL;
        fb_stats stats = {.size = sizeof stats};
        FAILS(FB_FORKED, fb_read(file, own, sizeof own, 0, &number));
        CHECK(strstr(fb_error_text(), "fork") != NULL);
        FAILS(FB_FORKED, fb_submit(&request, 1, NULL, &other));
        FAILS(FB_FORKED, fb_op_wait(op, -1, NULL));
        FAILS(FB_FORKED, fb_op_cancel(op));
        FAILS(FB_FORKED, fb_op_free(op));
        FAILS(FB_FORKED, fb_file_len(file, &number));
        FAILS(FB_FORKED, fb_engine_stats(engine, &stats));
        FAILS(FB_FORKED, fb_file_close(file));
        FAILS(FB_FORKED, fb_engine_close(engine, NULL));
        fb_engine *mine = start_engine();
        fb_file *again = open_file(mine, arguments[1], "data", FB_READ_ONLY);
        OK(fb_read(again, own, sizeof own, 4096, &number));
        CHECK(number == sizeof own);
        check_bytes(own, sizeof own, 4096);
        OK(fb_file_close(again));
        OK(fb_engine_close(mine, NULL));
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(fb_op_wait(op, -1, NULL));
    check_bytes(memory, 65536, 0);
    OK(fb_op_free(op));
    OK(fb_file_close(file));
    OK(fb_engine_close(engine, NULL));
    free(memory);
    puts("ok");
    return 0;
}
