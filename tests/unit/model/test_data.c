/* The job's text: which files it is made of, and samples that stay the same for ever. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/data.h"
#include "runtime/base/mem.h"
#include "tests/unit/model/tiny.h"

#define T       16
#define LINE    8 /* bytes of one line of the numbered text */
#define N_LINES 5000

static char dir[] = "/tmp/shoal-data-XXXXXX";

static char *in_dir(const char *name)
{
    static char path[4][256];
    static unsigned next;
    char *p = path[next++ % 4];

    snprintf(p, sizeof(path[0]), "%s/%s", dir, name);
    return p;
}

static void write_file(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in_dir(name), "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static int clean(void **state)
{
    char command[300];

    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s/*", dir);
    return system(command);
}

/* A job over one file of numbered lines "0000000\n", so that a sample shows its position. */
static struct job numbered(void)
{
    char text[N_LINES * LINE + 1];
    struct job job = tiny_job();

    for (int i = 0; i < N_LINES; i++)
        snprintf(text + i * LINE, LINE + 1, "%07d\n", i);
    write_file("numbered", text, N_LINES * LINE);
    job.model.n_ctx = T;
    job.data.paths[0] = in_dir("numbered");
    job.data.n_paths = 1;
    return job;
}

static int64_t position(const int32_t *tokens)
{
    int at = 0, value = 0;

    while (tokens[at] != '\n')
        at++;
    assert_true(at < LINE);
    for (int i = 1; i < LINE; i++)
        value = 10 * value + (tokens[at + i] - '0');
    return (int64_t)value * LINE - (at + 1);
}

static struct data *open_data(const struct job *job)
{
    struct reason why = {0};
    struct data *d = NULL;

    if (data_open(job, &d, &why) < 0)
        fail_msg("%s", why.text);
    return d;
}

/* The text of a job's files, seen through samples of one byte. */
static void assert_text(char *const *paths, size_t n_paths, const char *expected)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    struct job job = tiny_job();
    struct data *d;

    job.model.n_ctx = 1;
    job.data.validation = 0.5;
    memcpy(job.data.paths, paths, n_paths * sizeof(*paths));
    job.data.n_paths = n_paths;
    d = open_data(&job);
    assert_int_equal(data_train_tokens(d) + data_validation_tokens(d), strlen(expected));
    for (const char *s = expected; *s; s++)
        h = (h ^ (uint8_t)*s) * UINT64_C(0x100000001b3);
    assert_true(data_fingerprint(d) == h);
    data_free(d);
}

static void assert_refused(char *path, int status, const char *sentence)
{
    struct job job = tiny_job();
    struct reason why = {0};
    struct data *d = NULL;

    job.data.paths[0] = path;
    job.data.n_paths = 1;
    assert_int_equal(data_open(&job, &d, &why), status);
    assert_null(d);
    if (!strstr(why.text, sentence))
        fail_msg("\"%s\" does not say \"%s\"", why.text, sentence);
}

static void samples_stay_where_they_are_for_ever(void **state)
{
    static const struct {
        uint64_t step;
        uint32_t microbatch;
        int64_t at[2];
    } golden[] = {
        {0, 0, {7177, 14329}}, {0, 1, {16646, 12072}},          {1, 0, {26587, 24683}},
        {1, 3, {5981, 21457}}, {123456789, 4095, {5816, 7243}},
    };
    const struct job job = numbered();
    struct data *d = open_data(&job);

    (void)state;
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        int32_t tokens[2 * T], targets[2 * T];

        data_sample(d, golden[i].step, golden[i].microbatch, tokens, targets);
        for (int b = 0; b < 2; b++) {
            assert_int_equal(position(tokens + b * T), golden[i].at[b]);
            assert_memory_equal(tokens + b * T + 1, targets + b * T, (T - 1) * sizeof(int32_t));
            assert_int_equal(position(targets + b * T), golden[i].at[b] + 1);
        }
    }
    data_free(d);
}

static void samples_depend_on_seed_but_not_on_the_batch_size(void **state)
{
    struct job job = numbered();
    struct data *d = open_data(&job), *wide, *other;
    int32_t a[5 * T], b[5 * T], c[5 * T], targets[5 * T];

    (void)state;
    job.train.sequences = 5;
    job.train.microbatches = 64;
    wide = open_data(&job);
    job.seed++;
    other = open_data(&job);
    data_sample(d, 9, 2, a, targets);
    data_sample(wide, 9, 2, b, targets);
    data_sample(other, 9, 2, c, targets);
    assert_memory_equal(a, b, sizeof(int32_t) * 2 * T);
    assert_memory_not_equal(a, c, sizeof(int32_t) * 2 * T);
    data_free(d);
    data_free(wide);
    data_free(other);
}

static void training_samples_cover_the_training_text_and_nothing_else(void **state)
{
    const struct job job = numbered();
    struct data *d = open_data(&job);
    const int64_t n = (int64_t)data_train_tokens(d);
    int64_t least = n, most = 0;
    double sum = 0;

    (void)state;
    assert_int_equal(n, N_LINES * LINE * 9 / 10);
    assert_int_equal(data_validation_tokens(d), N_LINES * LINE / 10);
    for (uint64_t step = 0; step < 2000; step++) {
        int32_t tokens[2 * T], targets[2 * T];

        data_sample(d, step, 0, tokens, targets);
        for (int b = 0; b < 2; b++) {
            const int64_t at = position(tokens + b * T);

            assert_true(at + T < n);
            least = at < least ? at : least;
            most = at > most ? at : most;
            sum += (double)at / 4000;
        }
    }
    assert_true(least < n / 100 && most > n - n / 100);
    assert_true(fabs(sum / (double)n - 0.5) < 0.03);
    data_free(d);
}

static void validation_samples_are_disjoint_and_reach_both_ends(void **state)
{
    struct job job = numbered();
    struct data *d;
    int64_t last = 0;

    (void)state;
    job.eval.microbatches = 100; /* of 2 sequences of 16 tokens: 3200 of 4000 tokens */
    d = open_data(&job);
    for (uint32_t i = 0; i < 100; i++) {
        int32_t tokens[2 * T], targets[2 * T], again[2 * T];

        data_eval_sample(d, i, tokens, targets);
        data_eval_sample(d, i, again, targets);
        assert_memory_equal(tokens, again, sizeof(tokens));
        for (int b = 0; b < 2; b++) {
            const int64_t at = position(tokens + b * T) - (int64_t)data_train_tokens(d);

            if (i == 0 && b == 0)
                assert_int_equal(at, 0);
            else
                assert_in_range(at - last, 20, 21); /* 3983 of 199 steps */
            last = at;
        }
    }
    assert_int_equal(last + T + 1, data_validation_tokens(d));
    data_free(d);
}

static void one_validation_sequence_starts_the_validation_text(void **state)
{
    struct job job = numbered();
    struct data *d;
    int32_t tokens[T], targets[T];

    (void)state;
    job.train.sequences = 1;
    job.eval.microbatches = 1;
    d = open_data(&job);
    data_eval_sample(d, 0, tokens, targets);
    assert_int_equal(position(tokens), data_train_tokens(d));
    data_free(d);
}

static void folders_and_globs_give_each_text_once_in_byte_order(void **state)
{
    (void)state;
    write_file("b", "bbb", 3);
    write_file("a", "aa", 2);
    write_file("B", "BBBB", 4);
    write_file("c.dat", "c\0c", 3);
    write_file(".hidden", "hhh", 3);
    assert_int_equal(symlink("a", in_dir("z.u8")), 0);
    assert_int_equal(symlink("nowhere", in_dir("dangling.u8")), 0);
    assert_int_equal(mkdir(in_dir("sub"), 0700), 0);
    write_file("sub/deep", "dd", 2);
    assert_text((char *[]){dir}, 1, "BBBBaabbb");
    assert_text((char *[]){in_dir("*")}, 1, "BBBBaabbb");
    assert_text((char *[]){in_dir("[ab]"), in_dir("sub"), in_dir("B"), in_dir("z.u8")}, 4, "aabbbddBBBB");
    assert_text((char *[]){in_dir("*.u8"), in_dir("b")}, 2, "aabbb");
}

static void what_is_missing_or_no_text_is_refused_by_name(void **state)
{
    (void)state;
    write_file("binary", "abc\0defghijklmnopqrstuvwxyz", 27);
    write_file("empty", "", 0);
    write_file("short", "0123456789", 10);
    assert_int_equal(mkdir(in_dir("nothing"), 0700), 0);
    assert_refused(in_dir("absent"), -E_NOENT, "absent: No such file or directory");
    assert_refused(in_dir("*.txt"), -E_NOENT, "nothing matches");
    assert_refused(in_dir("binary"), -E_CONFIG, "binary is not text");
    assert_refused(in_dir("empty"), -E_CONFIG, "hold no text");
    assert_refused(in_dir("nothing"), -E_CONFIG, "hold no text");
    assert_refused("/dev/null", -E_CONFIG, "/dev/null is neither a file nor a folder");
    assert_refused(in_dir("short"), -E_CONFIG,
                   "10 bytes of text are too few: training gets 9 and validation 1, each needs at least "
                   "model.context + 1 = 7");
}

static void text_at_the_limit_is_enough(void **state)
{
    struct job job = tiny_job();
    int32_t tokens[2 * 6], targets[2 * 6];
    struct data *d;

    (void)state;
    write_file("text", "abcdefgABCDEFG", 14);
    job.data.paths[0] = in_dir("text");
    job.data.n_paths = 1;
    job.data.validation = 0.5;
    d = open_data(&job);
    data_sample(d, 5, 5, tokens, targets);
    assert_int_equal(tokens[6], 'a');
    assert_int_equal(targets[11], 'g');
    data_eval_sample(d, 1, tokens, targets);
    assert_int_equal(tokens[0], 'A');
    assert_int_equal(targets[11], 'G');
    data_free(d);
}

static void fingerprint_is_fnv1a_of_the_text(void **state)
{
    struct job job = tiny_job();
    struct data *d;

    (void)state;
    write_file("text", "foobar", 6);
    job.model.n_ctx = 1;
    job.data.paths[0] = in_dir("text");
    job.data.n_paths = 1;
    job.data.validation = 0.5;
    d = open_data(&job);
    assert_true(data_fingerprint(d) == UINT64_C(0x85944171f73967e8)); /* from the FNV authors' test vectors */
    data_free(d);
}

static void unigram_loss_knows_letter_frequencies_only(void **state)
{
    struct job job = tiny_job();
    struct data *d;
    char text[1000];

    (void)state;
    for (int i = 0; i < 1000; i++)
        text[i] = i % 4 == 3 ? 'b' : 'a';
    write_file("text", text, 1000);
    job.data.paths[0] = in_dir("text");
    job.data.n_paths = 1;
    job.data.validation = 0.1;
    job.model.n_ctx = 4;
    d = open_data(&job); /* 675 a and 225 b in training; every 4 targets hold 3 a and 1 b */
    assert_true(fabs(data_unigram_loss(d) + (0.75 * log(676.0 / 1156.0) + 0.25 * log(226.0 / 1156.0))) < 1e-12);
    data_free(d);
}

static void running_out_of_memory_leaves_nothing_behind(void **state)
{
    const struct job job = numbered();
    int64_t after = 0;

    (void)state;
    for (;; after++) {
        struct reason why = {0};
        struct data *d = NULL;
        int r;

        mem_fault_set(after);
        r = data_open(&job, &d, &why);
        if (!mem_fault_hit()) {
            mem_fault_set(-1);
            assert_int_equal(r, 0);
            data_free(d);
            break;
        }
        assert_int_equal(r, -E_NOMEM);
        assert_null(d);
    }
    assert_true(after >= 3);
}

static int make_dir(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    unlink(in_dir(".hidden"));
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(samples_stay_where_they_are_for_ever, clean),
        cmocka_unit_test_teardown(samples_depend_on_seed_but_not_on_the_batch_size, clean),
        cmocka_unit_test_teardown(training_samples_cover_the_training_text_and_nothing_else, clean),
        cmocka_unit_test_teardown(validation_samples_are_disjoint_and_reach_both_ends, clean),
        cmocka_unit_test_teardown(one_validation_sequence_starts_the_validation_text, clean),
        cmocka_unit_test_teardown(folders_and_globs_give_each_text_once_in_byte_order, clean),
        cmocka_unit_test_teardown(what_is_missing_or_no_text_is_refused_by_name, clean),
        cmocka_unit_test_teardown(text_at_the_limit_is_enough, clean),
        cmocka_unit_test_teardown(fingerprint_is_fnv1a_of_the_text, clean),
        cmocka_unit_test_teardown(unigram_loss_knows_letter_frequencies_only, clean),
        cmocka_unit_test_teardown(running_out_of_memory_leaves_nothing_behind, clean),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
