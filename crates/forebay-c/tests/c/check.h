/* What the programs share: checks that name their line, an engine with the driver of FOREBAY_TEST_DRIVER, and files. */
#ifndef CHECK_H
#define CHECK_H

#include <forebay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                        \
    do {                                                                                                        \
        if (!(condition)) {                                                                                     \
            fprintf(stderr, "%s:%d: not so: %s; last failure: %s\n", __FILE__, __LINE__, #condition, fb_error_text()); \
            exit(1);                                                                                            \
        }                                                                                                       \
    } while (0)

#define FAILS(code, call) check_code(code, call, __FILE__, __LINE__, #call)
#define OK(call) FAILS(FB_OK, call)

static inline void check_code(int wanted, int found, const char *file, int line, const char *call) {
    if (found != wanted) {
        fprintf(stderr, "%s:%d: %s: %s instead of %s; last failure: %s\n", file, line, call, fb_code_name(found),
                fb_code_name(wanted), fb_error_text());
        exit(1);
    }
}

static inline fb_engine *start_engine_with(uint64_t arena_bytes_max, uint64_t overflow_bytes_max) {
    const char *driver = getenv("FOREBAY_TEST_DRIVER");
    fb_config config = {.size = sizeof config, .shards = 1, .arena_bytes_max = arena_bytes_max};
    fb_engine *engine = NULL;
    config.overflow_bytes_max = overflow_bytes_max;
    if (driver != NULL && strcmp(driver, "threads") == 0) config.driver = FB_DRIVER_THREADS;
    OK(fb_engine_start(&config, &engine));
    CHECK(engine != NULL);
    return engine;
}

static inline fb_engine *start_engine(void) { return start_engine_with(64u << 20, 0); }

/* Opens a file past the page cache where the file system can, and through it elsewhere. */
static inline fb_file *open_file(fb_engine *engine, const char *folder, const char *name, uint32_t access) {
    char path[4096];
    fb_file *file = NULL;
    fb_open open = {.size = sizeof open, .access = access, .mode = FB_DIRECT};
    int code;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    code = fb_file_open(engine, path, &open, &file);
    if (code == FB_UNSUPPORTED) {
        open.mode = FB_BUFFERED;
        code = fb_file_open(engine, path, &open, &file);
    }
    OK(code);
    CHECK(file != NULL);
    return file;
}

static inline fb_request read_request(fb_file *file, void *data, size_t len, uint64_t offset) {
    return (fb_request){.size = sizeof(fb_request), .file = file, .data = data, .len = len, .offset = offset, .op = FB_OP_READ};
}

/* Memory that starts at a page. */
static inline unsigned char *pages(size_t len) {
    void *memory = NULL;
    CHECK(posix_memalign(&memory, 4096, len) == 0);
    memset(memory, 0, len);
    return memory;
}

/* Byte `at` of each file of the tests. */
static inline unsigned char byte_at(uint64_t at) { return (unsigned char)(at * 31 + at / 4096); }

static inline fb_file *filled_file(fb_engine *engine, const char *folder, const char *name, size_t len) {
    fb_file *file = open_file(engine, folder, name, FB_CREATE);
    unsigned char *bytes = pages(len);
    for (size_t at = 0; at < len; at++) bytes[at] = byte_at(at);
    OK(fb_write(file, bytes, len, 0, FB_DURABLE_NONE));
    free(bytes);
    return file;
}

static inline void check_bytes(const unsigned char *bytes, size_t len, uint64_t offset) {
    for (size_t at = 0; at < len; at++) CHECK(bytes[at] == byte_at(offset + at));
}

#endif
