/* Job files: what is accepted, what every mistake is called, and that each example is a job. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/job.h"
#include "runtime/base/mem.h"

#define MODEL   "model: {layers: 2, heads: 2, embd: 8, context: 16}\n"
#define DATA    "data: {paths: [a]}\n"
#define TRAIN   "train: {steps: 100}\n"
#define MINIMAL MODEL DATA TRAIN

static int parse(const char *text, const char *base_dir, struct job *ret, struct reason *why)
{
    return job_parse(text, strlen(text), base_dir, ret, why);
}

static void assert_refused(const char *text, const char *sentence)
{
    struct job job;
    struct reason why = {0};
    const int r = parse(text, NULL, &job, &why);

    if (r == 0)
        fail_msg("accepted:\n%s", text);
    assert_string_equal(why.text, sentence);
    assert_int_equal(r, -E_CONFIG);
}

static void all_keys_are_read(void **state)
{
    static const char text[] = "# a comment\n"
                               "name: my-job.2\n"
                               "seed: 18446744073709551615\n"
                               "reduction: fast\n"
                               "peers: 3\n"
                               "model:\n"
                               "  arch: gpt2\n"
                               "  layers: 4   # blocks\n"
                               "  heads: 4\n"
                               "  embd: 128\n"
                               "  context: 64\n"
                               "  vocab: 300\n"
                               "data:\n"
                               "  paths: [a.txt, \"dir with space\", /abs/*.txt]\n"
                               "  validation: 0.25\n"
                               "train:\n"
                               "  steps: 1000\n"
                               "  microbatches: 12\n"
                               "  sequences: 2\n"
                               "  lr: 1e-3\n"
                               "  lr_min: 0.00001\n"
                               "  warmup: 10\n"
                               "  weight_decay: 0.05\n"
                               "  beta1: 0.8\n"
                               "  beta2: 0.99\n"
                               "  eps: 1e-7\n"
                               "  clip: 0\n"
                               "eval:\n"
                               "  every: 7\n"
                               "  microbatches: 5\n"
                               "checkpoint:\n"
                               "  every: 0\n"
                               "  keep: 9\n";
    struct job job;
    struct reason why = {0};

    (void)state;
    if (parse(text, "/base", &job, &why) < 0)
        fail_msg("%s", why.text);
    assert_string_equal(job.name, "my-job.2");
    assert_true(job.seed == UINT64_MAX);
    assert_int_equal(job.reduction, JOB_REDUCTION_FAST);
    assert_int_equal(job.peers, 3);
    assert_int_equal(job.model.n_layer, 4);
    assert_int_equal(job.model.n_head, 4);
    assert_int_equal(job.model.n_embd, 128);
    assert_int_equal(job.model.n_ctx, 64);
    assert_int_equal(job.model.n_vocab, 300);
    assert_int_equal(job.data.n_paths, 3);
    assert_string_equal(job.data.paths[0], "/base/a.txt");
    assert_string_equal(job.data.paths[1], "/base/dir with space");
    assert_string_equal(job.data.paths[2], "/abs/*.txt");
    assert_true(job.data.validation == 0.25);
    assert_int_equal(job.train.steps, 1000);
    assert_int_equal(job.train.microbatches, 12);
    assert_int_equal(job.train.sequences, 2);
    assert_true(job.train.lr == 1e-3 && job.train.lr_min == 0.00001);
    assert_int_equal(job.train.warmup_steps, 10);
    assert_true(job.train.weight_decay == 0.05 && job.train.beta1 == 0.8 && job.train.beta2 == 0.99);
    assert_true(job.train.eps == 1e-7 && job.train.clip == 0);
    assert_int_equal(job.eval.every, 7);
    assert_int_equal(job.eval.microbatches, 5);
    assert_int_equal(job.checkpoint.every, 0);
    assert_int_equal(job.checkpoint.keep, 9);
    assert_int_equal(job_step_tokens(&job), 12 * 2 * 64);
    job_done(&job);
    assert_int_equal(job.data.n_paths, 0);
}

static void what_is_left_out_has_its_default(void **state)
{
    struct job job;
    struct reason why = {0};

    (void)state;
    if (parse(MINIMAL, NULL, &job, &why) < 0)
        fail_msg("%s", why.text);
    assert_string_equal(job.name, "job");
    assert_int_equal(job.seed, 1);
    assert_int_equal(job.reduction, JOB_REDUCTION_EXACT);
    assert_int_equal(job.peers, 1);
    assert_int_equal(job.model.arch, JOB_ARCH_GPT2);
    assert_int_equal(job.model.n_vocab, 256);
    assert_string_equal(job.data.paths[0], "a");
    assert_true(job.data.validation == 0.1);
    assert_int_equal(job.train.microbatches, 16);
    assert_int_equal(job.train.sequences, 4);
    assert_true(job.train.lr == 6e-4 && job.train.lr_min == 6e-4 / 10);
    assert_int_equal(job.train.warmup_steps, 5);
    assert_true(job.train.weight_decay == 0.1 && job.train.beta1 == 0.9 && job.train.beta2 == 0.95);
    assert_true(job.train.eps == 1e-8 && job.train.clip == 1);
    assert_int_equal(job.eval.every, 50);
    assert_int_equal(job.eval.microbatches, 8);
    assert_int_equal(job.checkpoint.every, 100);
    assert_int_equal(job.checkpoint.keep, 2);
    job_done(&job);
}

static void an_unknown_key_is_named_with_its_line(void **state)
{
    (void)state;
    assert_refused("model:\n  layers: 2\n  # layrs: 1\n  heads: 2\n  embd: 8\n  context: 16\n  layrs: 3\n" DATA TRAIN,
                   "line 7: unknown key \"layrs\" under model");
    assert_refused("name: x\n\nmodell: {}\n" MINIMAL, "line 3: unknown key \"modell\"");
    assert_refused(MODEL DATA "train: {steps: 100, lrmin: 1}\n", "line 3: unknown key \"lrmin\" under train");
    /* A key of another section with the same name comes earlier. */
    assert_refused("train:\n  steps: 1\n  microbatches: 2\nmodel:\n  layers: 2\n  microbatches: 1\n",
                   "line 6: unknown key \"microbatches\" under model");
    assert_refused("<<: {a: b}\n" MINIMAL, "line 1: unknown key \"<<\"");
}

static void a_wrong_type_is_named_with_its_line(void **state)
{
    (void)state;
    assert_refused("name: x\npeers: [1]\n" MINIMAL, "line 2: peers must be a single value");
    assert_refused("peers: 1\nmodel: 5\n" DATA TRAIN, "line 2: model must have keys below it");
    assert_refused(MODEL "data:\n  paths: a\n" TRAIN, "line 3: data.paths must be a list: [a, b]");
    assert_refused(MODEL "data:\n  paths: []\n" TRAIN, "line 3: data.paths must have at least one entry");
    assert_refused(MODEL "data:\n  paths: [a, '']\n" TRAIN, "line 3: data.paths has an empty entry");
    assert_refused(MODEL "data:\n  paths: [a, {b: c}]\n" TRAIN,
                   "line 3: an entry of data.paths must be a single value");
    assert_refused("seed: -1\n" MINIMAL, "line 1: seed must be a whole number below 2^64, not \"-1\"");
    assert_refused("seed: 18446744073709551616\n" MINIMAL,
                   "line 1: seed must be a whole number below 2^64, not \"18446744073709551616\"");
    assert_refused(MODEL DATA "train:\n  steps: 4x\n", "line 4: train.steps must be a whole number, not \"4x\"");
    assert_refused(MODEL DATA "train:\n  steps: 1e3\n", "line 4: train.steps must be a whole number, not \"1e3\"");
    assert_refused(MODEL DATA "train:\n  steps:\n", "line 4: train.steps must be a whole number, not \"\"");
    assert_refused(MODEL DATA "train:\n  steps: 4\n  lr: 0x1p-3\n",
                   "line 5: train.lr must be a number, not \"0x1p-3\"");
    assert_refused(MODEL DATA "train:\n  steps: 4\n  lr: nan\n", "line 5: train.lr must be a number, not \"nan\"");
    assert_refused(MODEL DATA "train:\n  steps: 4\n  lr: 1e999\n", "line 5: train.lr must be a number, not \"1e999\"");
    assert_refused("reduction: best\n" MINIMAL, "line 1: reduction must be exact or fast, not \"best\"");
    assert_refused("model:\n  arch: bert\n", "line 2: model.arch must be gpt2, not \"bert\"");
    assert_refused("? [a]\n: b\n", "line 1: a key must be a word");
}

static void a_missing_key_is_named(void **state)
{
    (void)state;
    assert_refused(DATA TRAIN, "model.layers is missing");
    assert_refused("peers: 1\nmodel:\n  layers: 2\n  heads: 1\n  embd: 8\n" DATA TRAIN,
                   "line 2: model.context is missing");
    assert_refused(MODEL TRAIN, "data.paths is missing");
    assert_refused(MODEL DATA, "train.steps is missing");
}

static void limits_are_kept(void **state)
{
    (void)state;
    assert_refused("peers: 0\n" MINIMAL, "line 1: peers must be 1 to 1024, not 0");
    assert_refused("peers: 1025\n" MINIMAL, "line 1: peers must be 1 to 1024, not 1025");
    assert_refused("model: {layers: 1023, heads: 2, embd: 8, context: 16}\n" DATA TRAIN,
                   "line 1: model.layers must be 1 to 1022, not 1023");
    assert_refused("model: {layers: 2, heads: 3, embd: 8, context: 16}\n" DATA TRAIN,
                   "line 1: model.heads must divide model.embd: 8 is not a multiple of 3");
    assert_refused("model:\n  layers: 2\n  heads: 2\n  embd: 8\n  context: 16\n  vocab: 255\n" DATA TRAIN,
                   "line 6: model.vocab must be 256 to 1048576, not 255");
    assert_refused(MODEL "data: {paths: [a], validation: 0}\n" TRAIN,
                   "line 2: data.validation must be above 0 and at most 0.5, not 0");
    assert_refused(MODEL "data: {paths: [a], validation: 0.51}\n" TRAIN,
                   "line 2: data.validation must be above 0 and at most 0.5, not 0.51");
    assert_refused(MODEL DATA "train: {steps: 0}\n", "line 3: train.steps must be 1 to 1099511627776, not 0");
    assert_refused(MODEL DATA "train: {steps: 1, microbatches: 4097}\n",
                   "line 3: train.microbatches must be 1 to 4096, not 4097");
    assert_refused(MODEL DATA "train: {steps: 1, lr: 0}\n", "line 3: train.lr must be above 0 and at most 10, not 0");
    assert_refused(MODEL DATA "train:\n  steps: 5\n  lr: 1e-3\n  lr_min: 2e-3\n",
                   "line 6: train.lr_min must be 0 to 0.001, not 2e-3");
    assert_refused(MODEL DATA "train:\n  steps: 5\n  warmup: 6\n", "line 5: train.warmup must be 0 to 5, not 6");
    assert_refused(MODEL DATA "train: {steps: 5, beta2: 1}\n", "line 3: train.beta2 must be 0 to 0.999999, not 1");
    assert_refused(MODEL DATA TRAIN "eval:\n  microbatches: 0\n", "line 5: eval.microbatches must be 1 to 4096, not 0");
    assert_refused(MODEL DATA TRAIN "checkpoint:\n  keep: 0\n", "line 5: checkpoint.keep must be 1 to 1000, not 0");
    assert_refused("name: -x\n" MINIMAL, "line 1: name may hold letters, digits, '.', '_' and '-' and begins with a "
                                         "letter or digit, not \"-x\"");
    assert_refused("name: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n" MINIMAL,
                   "line 1: name must have 1 to 64 characters");
}

static void sizes_that_do_not_fit_together_are_refused(void **state)
{
    (void)state;
    assert_refused("model: {layers: 2, heads: 2, embd: 1024, context: 1024}\n" DATA
                   "train:\n  steps: 9\n  sequences: 17\n",
                   "line 5: train.sequences x model.context x model.embd is too much: a microbatch's boundary tensor "
                   "would have 71303168 bytes of at most 67108864; use more, smaller microbatches");
    assert_refused(
        "model: {layers: 2, heads: 2, embd: 2, context: 4096}\n" DATA
        "train: {steps: 9, sequences: 2000, microbatches: 4096}\n",
        "line 3: train.microbatches x train.sequences x model.context is too much: 33554432000 tokens a step "
        "of at most 4294967296");
}

static void what_is_no_yaml_is_refused(void **state)
{
    (void)state;
    assert_refused("", "the job file is empty");
    assert_refused("# nothing\n", "the job file is empty");
    assert_refused("hello\n", "line 1: the job must have keys below it");
    assert_refused("- a\n", "line 1: the job must have keys below it");
    assert_refused("peers: 1\neval:\n\tevery: 1\n", "line 3: indented with a tab, which YAML does not allow");
    assert_refused("peers: 1\nname: \"x\n", "at or after line 2: not valid YAML: found unexpected end of stream");
    assert_refused("peers: 1\nname: x\npeers: 2\n" MINIMAL, "line 3: peers appears twice");
    assert_refused("checkpoint: &a\n  keep: *a\n" MINIMAL,
                   "line 2: checkpoint.keep: YAML aliases (*name) are not supported");
    assert_refused(MINIMAL "---\nfoo: 1\n", "a job file holds one YAML document, this one has more (a line \"---\")");
}

static void a_text_above_the_limit_is_refused(void **state)
{
    char *text = mem_alloc(JOB_TEXT_MAX + 1);
    struct job job;
    struct reason why = {0};

    (void)state;
    assert_non_null(text);
    memset(text, '\n', JOB_TEXT_MAX + 1);
    memcpy(text, MINIMAL, sizeof(MINIMAL) - 1);
    assert_int_equal(job_parse(text, JOB_TEXT_MAX + 1, NULL, &job, &why), -E_CONFIG);
    assert_string_equal(why.text, "a job file has at most 262144 bytes, this one has 262145");
    assert_int_equal(job_parse(text, JOB_TEXT_MAX, NULL, &job, &why), 0);
    job_done(&job);
    mem_free(text);
}

static void a_file_is_named_in_front_and_gives_its_folder_to_data(void **state)
{
    char dir[] = "/tmp/shoal-job-XXXXXX", path[64], expected[160];
    struct job job;
    struct reason why = {0};
    char *text = NULL;
    FILE *f;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/x.yaml", dir);
    assert_int_equal(job_load(path, &job, NULL, &why), -E_NOENT);
    snprintf(expected, sizeof(expected), "cannot open job file %s: No such file or directory", path);
    assert_string_equal(why.text, expected);

    f = fopen(path, "w");
    assert_non_null(f);
    fputs("peers: 1\nfoo: 2\n" MINIMAL, f);
    fclose(f);
    assert_int_equal(job_load(path, &job, NULL, &why), -E_CONFIG);
    snprintf(expected, sizeof(expected), "%s: line 2: unknown key \"foo\"", path);
    assert_string_equal(why.text, expected);

    f = fopen(path, "w");
    assert_non_null(f);
    fputs(MINIMAL, f);
    fclose(f);
    assert_int_equal(job_load(path, &job, &text, &why), 0);
    assert_string_equal(text, MINIMAL);
    snprintf(expected, sizeof(expected), "%s/a", dir);
    assert_string_equal(job.data.paths[0], expected);
    job_done(&job);
    mem_free(text);
    unlink(path);
    rmdir(dir);
}

static void running_out_of_memory_leaves_nothing_behind(void **state)
{
    int64_t after = 0;

    (void)state;
    for (;; after++) {
        struct job job;
        struct reason why = {0};
        int r;

        mem_fault_set(after);
        r = parse(MINIMAL, "/base", &job, &why);
        if (!mem_fault_hit()) {
            mem_fault_set(-1);
            assert_int_equal(r, 0);
            job_done(&job);
            break;
        }
        assert_int_equal(r, -E_NOMEM);
    }
    assert_true(after >= 1);
}

static void every_example_is_a_job(void **state)
{
    static const char *const names[] = {"gpt-nano", "gpt-small"};

    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[512];
        struct job job;
        struct reason why = {0};

        snprintf(path, sizeof(path), "%s/examples/%s.yaml", SOURCE_ROOT, names[i]);
        if (job_load(path, &job, NULL, &why) < 0)
            fail_msg("%s", why.text);
        assert_string_equal(job.name, names[i]);
        job_done(&job);
    }
}

static void differences_of_what_is_trained_are_named(void **state)
{
    (void)state;
    struct job a, b;
    char text[128];

    assert_int_equal(parse(MODEL DATA "train: {steps: 100, lr: 0.001, warmup: 5}\n", NULL, &a, NULL), 0);
    assert_int_equal(parse(MODEL "data: {paths: [b]}\n"
                                 "train: {steps: 100, lr: 0.001, warmup: 5}\neval: {every: 7}\npeers: 3\n",
                           NULL, &b, NULL),
                     0);
    job_differences(&a, &b, text, sizeof(text));
    assert_string_equal(text, "");
    b.train.steps = 200;
    b.train.warmup_steps = 6;
    b.reduction = JOB_REDUCTION_FAST;
    job_differences(&a, &b, text, sizeof(text));
    assert_string_equal(text, "train.steps, train.warmup, reduction");
    job_done(&a);
    job_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_example_is_a_job),
        cmocka_unit_test(all_keys_are_read),
        cmocka_unit_test(differences_of_what_is_trained_are_named),
        cmocka_unit_test(what_is_left_out_has_its_default),
        cmocka_unit_test(an_unknown_key_is_named_with_its_line),
        cmocka_unit_test(a_wrong_type_is_named_with_its_line),
        cmocka_unit_test(a_missing_key_is_named),
        cmocka_unit_test(limits_are_kept),
        cmocka_unit_test(sizes_that_do_not_fit_together_are_refused),
        cmocka_unit_test(what_is_no_yaml_is_refused),
        cmocka_unit_test(a_text_above_the_limit_is_refused),
        cmocka_unit_test(a_file_is_named_in_front_and_gives_its_folder_to_data),
        cmocka_unit_test(running_out_of_memory_leaves_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
