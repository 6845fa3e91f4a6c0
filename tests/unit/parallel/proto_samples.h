/* One full example of each message: every field set, no two alike where that can be. The golden bytes are theirs, so a
 * change here changes tests/golden/proto_v1.txt. */
#ifndef SHOAL_TESTS_UNIT_PARALLEL_PROTO_SAMPLES_H
#define SHOAL_TESTS_UNIT_PARALLEL_PROTO_SAMPLES_H

#include "parallel/proto.h"

/* msg_free it. NULL when out of memory. */
struct msg *proto_sample(enum msg_type type);

/* The key pair that signed the sample of MSG_VIEW. */
void proto_sample_coordinator(struct key_pair *ret);

/* The lists of m: where each pointer lies, and how many bytes it points to. Returns how many there are (at most 3). */
struct proto_sample_list {
    void **at;
    size_t n_bytes;
};
size_t proto_sample_lists(struct msg *m, struct proto_sample_list ret[3]);

/* The size of the message's own struct, in the union of struct msg. */
size_t proto_sample_size(enum msg_type type);

#endif
