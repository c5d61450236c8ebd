/* Strided pieces of all ranks, written or read by collective calls of MPI-IO: the ruler for strided.rs (scripts/bench collective).
 *   mpicc -O2 strided.c -o strided && mpirun -n 4 ./strided write|read FILE PIECE BYTES START [HINT=VALUE ...]
 * BYTES are those of all ranks. Each rank prints the seconds that it spent in MPI-IO, with sync and close. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALL_BYTES = 16 << 20 }; /* of a rank */

static void check(const char *call, int code) {
    char text[MPI_MAX_ERROR_STRING] = "other bytes than were written";
    int length;
    if (code == MPI_SUCCESS) return;
    if (code != -1) MPI_Error_string(code, text, &length);
    fprintf(stderr, "%s: %s\n", call, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The word of a piece at this offset of the file. */
static uint64_t word(uint64_t at, uint64_t number) { return (at + number) * 0x9e3779b97f4a7c15u; }

int main(int count, char **arguments) {
    int rank, ranks, is_write;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count < 6) return fprintf(stderr, "strided write|read FILE PIECE BYTES START [HINT=VALUE ...]\n"), 2;
    is_write = strcmp(arguments[1], "write") == 0;
    uint64_t piece = strtoull(arguments[3], NULL, 10), start = strtoull(arguments[5], NULL, 10);
    uint64_t pieces = strtoull(arguments[4], NULL, 10) / piece / ranks, most = CALL_BYTES / piece;
    uint64_t *memory = malloc(most * piece);
    MPI_Info info;
    MPI_Info_create(&info);
    for (int hint = 6; hint < count; hint++) {
        char *value = strchr(arguments[hint], '=');
        *value++ = 0;
        MPI_Info_set(info, arguments[hint], value);
    }
    MPI_Datatype element, place;
    MPI_Type_contiguous(piece, MPI_BYTE, &element);
    MPI_Type_commit(&element);
    MPI_Type_create_resized(element, 0, piece * ranks, &place);
    MPI_Type_commit(&place);
    MPI_File file;
    int mode = is_write ? MPI_MODE_CREATE | MPI_MODE_RDWR : MPI_MODE_RDONLY;
    check("open", MPI_File_open(MPI_COMM_WORLD, arguments[2], mode, info, &file));
    check("view", MPI_File_set_view(file, start + rank * piece, element, place, "native", info));
    double spent = 0;
    for (uint64_t done = 0; done < pieces; done += most) {
        uint64_t now = pieces - done < most ? pieces - done : most, words = piece / 8, differ = 0;
        for (uint64_t at = 0; is_write && at < now * words; at++)
            memory[at] = word(start + ((done + at / words) * ranks + rank) * piece, at % words);
        MPI_Barrier(MPI_COMM_WORLD);
        double begun = MPI_Wtime();
        if (is_write) check("write", MPI_File_write_at_all(file, done, memory, now, element, MPI_STATUS_IGNORE));
        else check("read", MPI_File_read_at_all(file, done, memory, now, element, MPI_STATUS_IGNORE));
        spent += MPI_Wtime() - begun;
        for (uint64_t at = 0; !is_write && at < now * words; at++)
            differ |= memory[at] ^ word(start + ((done + at / words) * ranks + rank) * piece, at % words);
        check("bytes", differ ? -1 : MPI_SUCCESS);
    }
    double begun = MPI_Wtime();
    if (is_write) check("sync", MPI_File_sync(file));
    check("close", MPI_File_close(&file));
    printf("%f\n", spent + MPI_Wtime() - begun);
    return MPI_Finalize();
}
