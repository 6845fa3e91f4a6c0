/* Replays a fuzz corpus as an ordinary test: every file named on the command line, or standing in a folder named there,
 * is given to the target whole, and then cut short at many lengths (decoders like to read past a sudden end). Each
 * input lies in a block of exactly its size, so that a sanitizer sees one byte too far. This is not a fuzzer: with
 * -Dfuzzing=true libFuzzer's own main takes its place. No input at all is a failure. */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

#define INPUT_BYTES_MAX (16u << 20)
#define CUTS_MAX        512u

static size_t n_files;

static void try_bytes(const uint8_t *data, size_t size)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);

    if (exact == NULL)
        abort();
    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static bool try_file(const char *path)
{
    FILE *f = fopen(path, "rbe");
    uint8_t *data = malloc(INPUT_BYTES_MAX);
    bool ok = f != NULL && data != NULL;

    if (ok) {
        const size_t size = fread(data, 1, INPUT_BYTES_MAX, f);
        const size_t cut = size / CUTS_MAX + 1;

        ok = ferror(f) == 0 && feof(f) != 0; /* a file that fills the block may go on: too big */
        for (size_t n = 0; ok && n < size; n += cut)
            try_bytes(data, n);
        if (ok)
            try_bytes(data, size);
        n_files++;
    }
    if (!ok)
        fprintf(stderr, "%s: cannot be read, or too big: %s\n", path, strerror(errno));
    if (f != NULL)
        fclose(f);
    free(data);
    return ok;
}

static bool try_folder(const char *path)
{
    DIR *d = opendir(path);
    bool ok = d != NULL;

    if (d == NULL)
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char file[4096];

        if (e->d_name[0] == '.')
            continue;
        if (snprintf(file, sizeof(file), "%s/%s", path, e->d_name) >= (int)sizeof(file))
            abort();
        ok = try_file(file) && ok;
    }
    if (d != NULL)
        closedir(d);
    return ok;
}

int main(int argc, char **argv)
{
    bool ok = true;

    for (int i = 1; i < argc; i++) {
        struct stat st;
        const bool folder = stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode);

        ok = (folder ? try_folder(argv[i]) : try_file(argv[i])) && ok;
    }
    printf("%zu inputs\n", n_files);
    return ok && n_files > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
