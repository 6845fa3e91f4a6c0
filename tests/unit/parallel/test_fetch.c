/* State transfer: every piece is asked for and arrives once, whatever is lost, doubled or damaged. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "parallel/fetch.h"
#include "runtime/base/clock.h"
#include "runtime/base/mem.h"

#define P FETCH_PIECE_ELEMS

static const struct key donor_a = {{1}}, donor_b = {{2}};

static struct fetch *two_tensors(void)
{
    const struct fetch_item items[] = {
        {.tensor = 3, .part = 0, .n_elems = 20 * P + 5, .donor = donor_a},
        {.tensor = 9, .part = 2, .n_elems = 1, .donor = donor_b},
    };
    struct fetch *f;

    assert_int_equal(fetch_new(1, 77, items, 2, &f), 0);
    return f;
}

static void forget(struct effects *fx)
{
    for (uint32_t i = 0; i < fx->n_sends; i++)
        msg_free(fx->sends[i].msg);
    effects_clear(fx);
}

static struct msg *answer(const struct msg_state_key *k)
{
    struct msg *m = msg_new(MSG_STATE_CHUNK, 1);

    m->state_chunk.key = *k;
    assert_int_equal(blob_new(k->n * sizeof(float), &m->body), 0);
    memset(m->body->data, 5, m->body->size);
    hash_of(m->body->data, m->body->size, m->state_chunk.hash);
    return m;
}

static int give(struct fetch *f, const struct key *from, const struct msg_state_key *k, int64_t now, struct effects *fx)
{
    struct msg *m = answer(k);
    int r = fetch_chunk(f, from, m, now, fx);

    msg_free(m);
    return r;
}

static void all_pieces_arrive_once(void **state)
{
    (void)state;
    struct fetch *f = two_tensors();
    struct effects fx = {0};
    uint64_t got = 0;

    fetch_tick(f, 0, &fx);
    while (fx.n_sends > 0) {
        struct effects asked = fx;

        fx = (struct effects){0};
        for (uint32_t i = 0; i < asked.n_sends; i++) {
            const struct msg_state_key k = asked.sends[i].msg->state_get.key;

            assert_int_equal(k.version, 77);
            assert_int_equal(give(f, &asked.sends[i].to, &k, 1, &fx), 1);
            assert_int_equal(give(f, &asked.sends[i].to, &k, 1, &fx), 0); /* twice */
            got += k.n;
        }
        effects_done(&asked);
    }
    assert_int_equal(got, 20 * P + 5 + 1);
    assert_true(fetch_finished(f));
    assert_true(fetch_progress(f) == 1);
    effects_done(&fx);
    fetch_free(f);
}

static void damaged_unasked_and_foreign_pieces_do_not_count(void **state)
{
    (void)state;
    struct fetch *f = two_tensors();
    struct effects fx = {0};
    struct msg_state_key first = {77, 3, 0, 0, P}, last = {77, 3, 0, 20 * P, 5}, old = {76, 3, 0, 0, P};
    struct msg *damaged = answer(&first);

    fetch_tick(f, 0, &fx);
    forget(&fx);
    ((char *)damaged->body->data)[17] ^= 1;
    assert_int_equal(fetch_chunk(f, &donor_a, damaged, 0, &fx), -E_CORRUPT);
    assert_int_equal(fx.n_sends, 1); /* asked for again */
    assert_int_equal(fx.sends[0].msg->state_get.key.offset, 0);
    assert_int_equal(give(f, &donor_b, &first, 0, &fx), 0); /* another one's to give */
    assert_int_equal(give(f, &donor_a, &last, 0, &fx), 0);  /* outside the window: never asked for */
    assert_int_equal(give(f, &donor_a, &old, 0, &fx), 0);
    assert_false(fetch_finished(f));
    assert_true(fetch_progress(f) == 0);
    assert_int_equal(give(f, &donor_a, &first, 0, &fx), 1);
    msg_free(damaged);
    effects_done(&fx);
    fetch_free(f);
}

/* Requests sent for one silent piece within that many seconds. */
static uint32_t asked_within(struct fetch *f, int64_t *now, int seconds)
{
    struct effects fx = {0};
    uint32_t n = 0;

    for (int i = 0; i < seconds * 10; i++) {
        *now += NS_PER_S / 10;
        fetch_tick(f, *now, &fx);
        n += fx.n_sends;
        forget(&fx);
    }
    effects_done(&fx);
    return n;
}

static void a_silent_donor_is_asked_less_and_less_often(void **state)
{
    (void)state;
    const struct fetch_item item = {.tensor = 1, .n_elems = 4, .donor = donor_a};
    struct fetch *f;
    int64_t now = 0;

    assert_int_equal(fetch_new(1, 7, &item, 1, &f), 0);
    assert_int_equal(asked_within(f, &now, 31), 5);   /* at 0, then after 2, 4, 8, 16 s */
    assert_int_equal(asked_within(f, &now, 320), 10); /* every 32 s */
    fetch_free(f);
}

/* Pieces that keep coming mean that the others are on their way. */
static void nothing_is_asked_again_while_pieces_come(void **state)
{
    (void)state;
    struct fetch *f = two_tensors();
    struct effects fx = {0};

    fetch_tick(f, 0, &fx);
    assert_int_equal(fx.n_sends, 16);
    forget(&fx);
    for (uint64_t i = 0; i < 5; i++) {
        int64_t now = (int64_t)(i + 1) * 3 * NS_PER_S / 2;
        struct msg_state_key k = {77, 3, 0, i * P, P};

        assert_int_equal(give(f, &donor_a, &k, now, &fx), 1);
        assert_int_equal(fx.n_sends, 1); /* the next one */
        forget(&fx);
        fetch_tick(f, now + NS_PER_S, &fx);
        assert_int_equal(fx.n_sends, 0);
    }
    effects_done(&fx);
    fetch_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_pieces_arrive_once),
        cmocka_unit_test(damaged_unasked_and_foreign_pieces_do_not_count),
        cmocka_unit_test(a_silent_donor_is_asked_less_and_less_often),
        cmocka_unit_test(nothing_is_asked_again_while_pieces_come),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
