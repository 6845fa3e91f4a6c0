/* Checkpoints: what is written is read back bit for bit; half-written, damaged and foreign ones are told apart; old
 * ones go. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "crypto/hash.h"
#include "model/checkpoint.h"
#include "model/digest.h"
#include "runtime/store/json.h"
#include "runtime/store/safetensors.h"
#include "tests/unit/store/temp_dir.h"

static const char job_text[] = "name: tiny\n"
                               "seed: 18446744073709551557\n"
                               "model: {layers: 2, heads: 2, embd: 8, context: 4}\n"
                               "data: {paths: [text]}\n"
                               "train: {steps: 10}\n";

static struct job job;
static struct model *model;
static float *(*parts)[PARAMS_PARTS];

static int setup(void **state)
{
    (void)state;
    if (job_parse(job_text, strlen(job_text), NULL, &job, NULL) < 0 || model_new(&job, &model, NULL) < 0)
        return -1;
    parts = mem_calloc(model->n_tensors, sizeof(*parts));
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        for (unsigned p = 0; p < PARAMS_PARTS; p++) {
            parts[t][p] = mem_calloc((size_t)model->tensors[t].n, sizeof(float));
            for (int64_t i = 0; i < model->tensors[t].n; i++)
                parts[t][p][i] = (float)(i % 1000) * 0.25f - (float)(t + 40 * p);
        }
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        for (unsigned p = 0; p < PARAMS_PARTS; p++)
            mem_free(parts[t][p]);
    }
    mem_free(parts);
    model_free(model);
    job_done(&job);
    return 0;
}

/* The parts as the writer takes them. */
static float *const (*const_parts(void))[PARAMS_PARTS]
{
    return (float *const(*)[PARAMS_PARTS])parts;
}

static struct checkpoint_state state_of(uint64_t version)
{
    struct checkpoint_state s = {.version = version, .updates = version / 2, .loss = 0.1 * (double)version};

    s.seed = UINT64_MAX - 58;
    s.data_fingerprint = UINT64_C(0x8000000000000001);
    checkpoint_model_hash(model, const_parts(), s.hash);
    return s;
}

static char *write_version(const char *dir, uint64_t version, uint32_t keep)
{
    const struct checkpoint_state s = state_of(version);
    char *path = NULL;

    assert_int_equal(checkpoint_write(dir, model, &job, job_text, &s, const_parts(), keep, &path, NULL), 0);
    assert_non_null(path);
    return path;
}

static void assert_latest(const char *dir, const char *want)
{
    cleanup_mem_ char *path = NULL;

    assert_int_equal(checkpoint_latest(dir, &path, NULL, NULL), 0);
    assert_string_equal(path, want);
}

static void written_checkpoint_reads_back_bit_for_bit(void **dir)
{
    cleanup_mem_ char *path = NULL, *deep = file_join(*dir, "a/b");
    const struct checkpoint_state want = state_of(42);
    const struct checkpoint_state *got;
    struct checkpoint *c;

    path = write_version(deep, 42, 1);
    assert_string_equal(path + strlen(path) - strlen("/step-00000042"), "/step-00000042");
    assert_int_equal(checkpoint_open(path, model, &c, NULL), 0);
    got = checkpoint_state(c);
    assert_true(got->version == want.version && got->updates == want.updates && got->loss == want.loss);
    assert_true(got->seed == want.seed && got->data_fingerprint == want.data_fingerprint);
    assert_memory_equal(got->hash, want.hash, sizeof(want.hash));
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        for (enum params_part p = PARAMS_VALUE; p < PARAMS_PARTS; p++)
            assert_memory_equal(checkpoint_part(c, t, p), parts[t][p], (size_t)model->tensors[t].n * sizeof(float));
    }
    checkpoint_free(c);
}

static void loss_of_version_0_is_nan(void **dir)
{
    struct checkpoint_state s = state_of(0);
    cleanup_mem_ char *path = NULL;
    struct checkpoint *c;

    s.loss = (double)NAN;
    assert_int_equal(checkpoint_write(*dir, model, &job, job_text, &s, const_parts(), 1, &path, NULL), 0);
    assert_int_equal(checkpoint_open(path, model, &c, NULL), 0);
    assert_true(isnan(checkpoint_state(c)->loss));
    checkpoint_free(c);
}

static void model_hash_is_over_digests_in_canonical_order(void **dir)
{
    uint8_t(*digests)[HASH_BYTES] = mem_calloc(model->n_tensors, HASH_BYTES);
    uint8_t want[HASH_BYTES], got[HASH_BYTES], other[HASH_BYTES];

    (void)dir;
    for (uint32_t t = 0; t < model->n_tensors; t++)
        digest_tensor(parts[t][PARAMS_VALUE], model->tensors[t].n, digests[t]);
    digest_model((const uint8_t(*)[HASH_BYTES])digests, model->n_tensors, want);
    checkpoint_model_hash(model, const_parts(), got);
    assert_memory_equal(got, want, HASH_BYTES);

    parts[3][PARAMS_MOMENT1][0] += 1; /* not the model's */
    checkpoint_model_hash(model, const_parts(), other);
    assert_memory_equal(other, want, HASH_BYTES);
    parts[3][PARAMS_MOMENT1][0] -= 1;

    parts[3][PARAMS_VALUE][0] = -parts[3][PARAMS_VALUE][0]; /* one bit */
    checkpoint_model_hash(model, const_parts(), other);
    assert_memory_not_equal(other, want, HASH_BYTES);
    parts[3][PARAMS_VALUE][0] = -parts[3][PARAMS_VALUE][0];
    mem_free(digests);
}

/* BLAKE2b-256 of 00 00 80 3f 00 00 00 c0 and of that digest, by Python's hashlib. */
static void digests_equal_hashlib(void **dir)
{
    const float values[] = {1.0f, -2.0f};
    uint8_t digest[1][HASH_BYTES], whole[HASH_BYTES];
    char hex[HASH_HEX_LEN + 1];

    (void)dir;
    digest_tensor(values, 2, digest[0]);
    hash_hex(digest[0], hex);
    assert_string_equal(hex, "28a8bfcdd8715d907a3fcd0a80b86a1db2ca5d85aa188da39854fb1a49dc1250");
    digest_model((const uint8_t(*)[HASH_BYTES])digest, 1, whole);
    hash_hex(whole, hex);
    assert_string_equal(hex, "9c62a58934f80ea26c0717917dc64421f17dd6ef42d807c4018b205dd5e59c7f");
}

static void files_are_what_transformers_reads(void **dir)
{
    cleanup_mem_ char *path = write_version(*dir, 1, 1), *config = file_join(path, "config.json");
    cleanup_mem_ char *tensors = file_join(path, "model.safetensors");
    struct safetensors *s;
    struct json *j;
    const char *text;
    uint64_t n;

    assert_int_equal(safetensors_open(tensors, &s, NULL), 0);
    assert_string_equal(safetensors_metadata(s, "format"), "pt");
    assert_non_null(safetensors_find(s, "transformer.wte.weight"));
    assert_non_null(safetensors_find(s, "transformer.h.1.attn.c_attn.weight"));
    assert_null(safetensors_find(s, "lm_head.weight"));
    safetensors_free(s);
    assert_int_equal(json_load(config, 4096, &j, NULL), 0);
    assert_string_equal(json_str(json_first(json_get(j, "architectures"))), "GPT2LMHeadModel");
    assert_int_equal(json_get_str(j, "activation_function", &text, NULL), 0);
    assert_string_equal(text, "gelu_new");
    assert_int_equal(json_get_u64(j, "n_positions", &n, NULL), 0);
    assert_int_equal(n, 4);
    assert_int_equal(json_get_u64(j, "vocab_size", &n, NULL), 0);
    assert_int_equal(n, 256);
    json_free(j);
}

static void newest_are_kept_and_leftovers_removed(void **dir)
{
    cleanup_mem_ char *leftover = file_join(*dir, ".checkpoint-new-step-00000007/x"), *other = file_join(*dir, "notes");
    const char *const want[] = {"notes", "step-00000090", "step-00000100"};
    char **names;
    size_t n;

    assert_int_equal(file_make_dirs(leftover, NULL), 0);
    assert_int_equal(file_make_dirs(other, NULL), 0);
    for (uint64_t v = 80; v <= 100; v += 10)
        mem_free(write_version(*dir, v, 2));
    assert_int_equal(file_list(*dir, &names, &n, NULL), 0);
    assert_int_equal(n, 3);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(names[i], want[i]);
    file_names_free(names, n);
}

static void versions_order_as_numbers_beyond_eight_digits(void **dir)
{
    cleanup_mem_ char *small = write_version(*dir, 99999999, 2), *large = write_version(*dir, 100000000, 2);

    assert_true(strcmp(small, large) > 0);
    assert_latest(*dir, large);
    mem_free(write_version(*dir, 100000001, 2));
    assert_true(file_exists(large));
    assert_false(file_exists(small));
}

static void written_again_replaces(void **dir)
{
    cleanup_mem_ char *first = write_version(*dir, 5, 1), *second = NULL;
    struct checkpoint *c;
    char **names;
    size_t n;

    parts[0][PARAMS_VALUE][0] += 1;
    second = write_version(*dir, 5, 1);
    assert_string_equal(first, second);
    assert_int_equal(checkpoint_open(second, model, &c, NULL), 0);
    assert_true(checkpoint_part(c, 0, PARAMS_VALUE)[0] == parts[0][PARAMS_VALUE][0]);
    checkpoint_free(c);
    parts[0][PARAMS_VALUE][0] -= 1;
    assert_int_equal(file_list(*dir, &names, &n, NULL), 0);
    assert_int_equal(n, 1);
    file_names_free(names, n);
}

static void just_written_is_kept_below_newer_ones(void **dir)
{
    cleanup_mem_ char *newer = write_version(*dir, 9, 1), *older = write_version(*dir, 4, 1);

    assert_true(file_exists(newer));
    assert_true(file_exists(older));
}

static void latest_of_nothing_is_not_found(void **dir)
{
    cleanup_mem_ char *none = file_join(*dir, "none"), *path = NULL;

    assert_int_equal(checkpoint_latest(none, &path, NULL, NULL), -E_NOENT);
    assert_int_equal(checkpoint_latest(*dir, &path, NULL, NULL), -E_NOENT);
    assert_null(path);
}

/* Each file in turn: missing, cut short, one bit changed in its middle. */
static void latest_passes_over_damaged_ones(void **dir)
{
    const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json", "job.yaml"};
    cleanup_mem_ char *old = write_version(*dir, 1, 9);

    for (size_t i = 0; i < 4; i++) {
        for (int damage = 0; damage < 3; damage++) {
            cleanup_mem_ char *path = write_version(*dir, 2, 9), *file = file_join(path, files[i]), *data = NULL;
            struct reason why = {0};
            struct checkpoint *c;
            size_t n;

            assert_latest(*dir, path);
            assert_int_equal(file_read(file, 1 << 20, &data, &n, NULL), 0);
            if (damage == 0) {
                assert_int_equal(file_remove_tree(file, NULL), 0);
            } else {
                data[i == 3 ? 1 : n - 4] ^= 1; /* "name" or the last value */
                assert_int_equal(file_write(file, data, damage == 1 ? n / 2 : n, 0644, NULL), 0);
            }
            assert_latest(*dir, old);
            if (i < 3) {
                assert_int_equal(checkpoint_open(path, model, &c, &why), -E_CORRUPT);
                assert_non_null(strstr(why.text, path));
            }
        }
    }
}

static void latest_passes_over_a_folder_that_lies_about_its_version(void **dir)
{
    cleanup_mem_ char *old = write_version(*dir, 1, 9), *path = write_version(*dir, 2, 9);
    cleanup_mem_ char *renamed = file_join(*dir, "step-00000003"), *odd = file_join(*dir, "step-000000002");

    assert_int_equal(rename(path, renamed), 0);
    assert_latest(*dir, old);
    assert_int_equal(rename(renamed, odd), 0);
    assert_latest(*dir, old);
    assert_int_equal(rename(odd, path), 0);
    assert_latest(*dir, path);
}

static void another_models_checkpoint_is_refused(void **dir)
{
    cleanup_mem_ char *path = write_version(*dir, 1, 1), *none = file_join(*dir, "none");
    struct job other = job;
    struct model *m;
    struct checkpoint *c = NULL;
    struct reason why = {0};

    other.model.n_layer = 3;
    assert_int_equal(model_new(&other, &m, NULL), 0);
    assert_int_equal(checkpoint_open(path, m, &c, NULL), -E_CONFIG);
    model_free(m);
    other = job;
    other.model.n_embd = 16;
    assert_int_equal(model_new(&other, &m, NULL), 0);
    assert_int_equal(checkpoint_open(path, m, &c, &why), -E_CONFIG);
    assert_non_null(strstr(why.text, "wte.weight"));
    model_free(m);
    assert_int_equal(checkpoint_open(none, model, &c, NULL), -E_NOENT);
    assert_null(c);
}

static void later_format_is_refused_with_both_numbers(void **dir)
{
    cleanup_mem_ char *path = write_version(*dir, 1, 1), *file = file_join(path, "state.json");
    struct reason why = {0};
    struct checkpoint *c;

    assert_int_equal(file_write(file, "{\"format\":2}", 12, 0644, NULL), 0);
    assert_int_equal(checkpoint_open(path, model, &c, &why), -E_VERSION);
    assert_non_null(strstr(why.text, "format 2"));
    assert_non_null(strstr(why.text, "reads 1"));
}

static void values_that_are_not_what_was_committed_are_not_written(void **dir)
{
    struct checkpoint_state s = state_of(1);
    char **names, *path = NULL;
    size_t n;

    s.hash[31] ^= 1;
    assert_int_equal(checkpoint_write(*dir, model, &job, job_text, &s, const_parts(), 1, &path, NULL), -E_CORRUPT);
    assert_null(path);
    assert_int_equal(file_list(*dir, &names, &n, NULL), 0);
    assert_int_equal(n, 0);
    file_names_free(names, n);
}

static void each_failing_allocation_leaves_the_old_or_the_new(void **dir)
{
    cleanup_mem_ char *old = write_version(*dir, 1, 9), *next = file_join(*dir, "step-00000002"), *path = NULL;
    const struct checkpoint_state s = state_of(2);
    int r;

    for (int64_t i = 0;; i++) {
        mem_fault_set(i);
        r = checkpoint_write(*dir, model, &job, job_text, &s, const_parts(), 9, &path, NULL);
        if (!mem_fault_hit() || r == 0) /* r == 0: it hit while old ones were to be removed */
            break;
        mem_fault_set(-1);
        assert_int_equal(r, -E_NOMEM);
        if (!file_exists(next))
            assert_latest(*dir, old);
        else
            assert_latest(*dir, next);
    }
    mem_fault_set(-1);
    assert_int_equal(r, 0);
    assert_latest(*dir, path);
}

static void job_is_read_from_the_folder(void **dir)
{
    cleanup_mem_ char *path = write_version(*dir, 1, 1), *text = NULL;
    struct job got;

    assert_int_equal(checkpoint_job(path, &got, &text, NULL), 0);
    assert_string_equal(text, job_text);
    assert_string_equal(got.name, "tiny");
    assert_true(got.seed == job.seed);
    assert_int_equal(got.model.n_layer, 2);
    job_done(&got);
    assert_int_equal(checkpoint_job(*dir, &got, NULL, NULL), -E_NOENT);
}

#define in_folder(f) cmocka_unit_test_setup_teardown(f, temp_dir_make, temp_dir_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_folder(written_checkpoint_reads_back_bit_for_bit),
        in_folder(loss_of_version_0_is_nan),
        cmocka_unit_test(model_hash_is_over_digests_in_canonical_order),
        cmocka_unit_test(digests_equal_hashlib),
        in_folder(files_are_what_transformers_reads),
        in_folder(newest_are_kept_and_leftovers_removed),
        in_folder(versions_order_as_numbers_beyond_eight_digits),
        in_folder(written_again_replaces),
        in_folder(just_written_is_kept_below_newer_ones),
        in_folder(latest_of_nothing_is_not_found),
        in_folder(latest_passes_over_damaged_ones),
        in_folder(latest_passes_over_a_folder_that_lies_about_its_version),
        in_folder(another_models_checkpoint_is_refused),
        in_folder(later_format_is_refused_with_both_numbers),
        in_folder(values_that_are_not_what_was_committed_are_not_written),
        in_folder(each_failing_allocation_leaves_the_old_or_the_new),
        in_folder(job_is_read_from_the_folder),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
