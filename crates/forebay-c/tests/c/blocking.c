/* Blocking calls: files, reads and writes, classes, figures, and the sentences of failures. */
#include <sys/stat.h>

#include "check.h"

int main(int count, char **arguments) {
    CHECK(count == 2);
    const char *folder = arguments[1];
    char path[4096], text[8192];
    uint64_t bytes = 0, len = 0;
    size_t needed = 0;
    fb_engine *engine = start_engine();

    /* Failures have a code, a sentence, and the system's number. */
    fb_file *file = NULL;
    snprintf(path, sizeof path, "%s/missing", folder);
    FAILS(FB_NOT_FOUND, fb_file_open(engine, path, NULL, &file));
    CHECK(file == NULL && fb_error_os() == 2);
    CHECK(strstr(fb_error_text(), "missing") != NULL);
    CHECK(strcmp(fb_code_name(FB_NOT_FOUND), "not_found") == 0);
    CHECK(strcmp(fb_code_name(1), "unknown") == 0);
    FAILS(FB_INVALID_INPUT, fb_file_open(engine, NULL, NULL, &file));
    CHECK(strstr(fb_error_text(), "path") != NULL && fb_error_os() == 0);

    file = filled_file(engine, folder, "data", 65536);
    OK(fb_sync(file, FB_DURABLE_DATA));
    OK(fb_file_len(file, &len));
    CHECK(len == 65536);

    /* Any offset, any length, any memory. */
    unsigned char small[1000];
    OK(fb_read(file, small, sizeof small, 4321, &bytes));
    CHECK(bytes == sizeof small);
    check_bytes(small, sizeof small, 4321);
    unsigned char *large = pages(65536);
    OK(fb_read(file, large, 65536, 0, NULL));
    check_bytes(large, 65536, 0);

    /* Fewer bytes at the end of the file, and 0 bytes behind it. */
    OK(fb_read(file, small, sizeof small, 65536 - 10, &bytes));
    CHECK(bytes == 10);
    OK(fb_read(file, small, sizeof small, 1 << 20, &bytes));
    CHECK(bytes == 0);
    OK(fb_read(file, NULL, 0, 0, &bytes));
    CHECK(bytes == 0);
    FAILS(FB_INVALID_INPUT, fb_read(file, NULL, 1, 0, &bytes));
    FAILS(FB_INVALID_INPUT, fb_read(file, small, 2, UINT64_MAX, &bytes));
    FAILS(FB_INVALID_INPUT, fb_sync(file, 9));

    /* A class, and a request with it. */
    fb_class class_spec = {.size = sizeof class_spec, .name = "tables", .shares = 50};
    uint32_t class_id = 0, again = 0;
    OK(fb_engine_class(engine, &class_spec, &class_id));
    CHECK(class_id > FB_CLASS_BACKGROUND);
    class_spec.shares = 60;
    OK(fb_engine_class(engine, &class_spec, &again));
    CHECK(again == class_id);
    fb_request request = {.size = sizeof request, .file = file, .data = large, .len = 4096, .op = FB_OP_READ, .class_id = class_id};
    OK(fb_run(&request, &bytes));
    CHECK(bytes == 4096);
    request.class_id = 99;
    FAILS(FB_INVALID_INPUT, fb_run(&request, &bytes));
    request.class_id = 0;
    request.op = 7;
    FAILS(FB_INVALID_INPUT, fb_run(&request, &bytes));

    /* Figures. */
    fb_stats stats = {.size = sizeof stats};
    OK(fb_engine_stats(engine, &stats));
    CHECK(stats.reads + stats.page_cache_reads >= 2 && stats.writes >= 1 && stats.syncs >= 1 && stats.write_bytes >= 65536);
    OK(fb_engine_metrics(engine, text, sizeof text, &needed));
    CHECK(needed > 100 && strlen(text) == (needed < sizeof text ? needed : sizeof text) - 1);
    OK(fb_engine_metrics(engine, NULL, 0, &needed));
    OK(fb_engine_health(engine, text, 8, &needed));
    CHECK(strlen(text) == 7 && needed > 8);

    /* A struct of an older header is shorter, one of a newer header longer: what is not known has to be 0. */
    struct {
        fb_open open;
        uint64_t field;
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.open.size = sizeof newer;
    newer.open.mode = FB_BUFFERED;
    fb_file *other = NULL;
    snprintf(path, sizeof path, "%s/data", folder);
    OK(fb_file_open(engine, path, &newer.open, &other));
    OK(fb_file_close(other));
    newer.field = 1;
    FAILS(FB_UNSUPPORTED, fb_file_open(engine, path, &newer.open, &other));
    fb_open older = {.size = offsetof(fb_open, mode), .access = FB_READ_ONLY};
    FAILS(FB_INVALID_INPUT, fb_file_open(engine, path, &older, &other)); /* no struct ends within a word */
    older.size = offsetof(fb_open, access);
    older.access = 99; /* behind the end of the older struct */
    snprintf(path, sizeof path, "%s/missing", folder);
    FAILS(FB_NOT_FOUND, fb_file_open(engine, path, &older, &other));
    older.size = 0;
    FAILS(FB_INVALID_INPUT, fb_file_open(engine, path, &older, &other));
    fb_stats shorter = {.size = offsetof(fb_stats, syncs), .syncs = 77};
    OK(fb_engine_stats(engine, &shorter));
    CHECK(shorter.syncs == 77 && shorter.writes > 0 && shorter.size == offsetof(fb_stats, syncs));

    OK(fb_file_set_len(file, 8192));
    OK(fb_file_len(file, &len));
    CHECK(len == 8192);
    uint32_t alignment = 0;
    OK(fb_file_alignment(file, &alignment, NULL));
    int descriptor = -1;
    struct stat attributes;
    OK(fb_file_descriptor(file, &descriptor));
    CHECK(fstat(descriptor, &attributes) == 0 && attributes.st_size == 8192);
    FAILS(FB_INVALID_INPUT, fb_file_descriptor(file, NULL));
    OK(fb_file_close(file));
    fb_close_report report = {.size = sizeof report};
    OK(fb_engine_close(engine, &report));
    CHECK(report.leaked_operations == 0 && report.lost_shards == 0 && report.lost_memory == 0);
    free(large);
    puts("ok");
    return 0;
}
