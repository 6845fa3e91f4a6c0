/* Inside proto*.c only: a look at msgpack bytes before the library sees them. msgpack-c reserves memory for as many
 * elements as an array's head claims before it has seen one of them (tried with 4.0.0: six bytes make it take 2 GB), so
 * claims are checked against the bytes that are there first. */
#ifndef SHOAL_PARALLEL_PROTO_SCAN_H
#define SHOAL_PARALLEL_PROTO_SCAN_H

#include <stddef.h>

#include "runtime/base/status.h"

#define PROTO_SCAN_DEPTH_MAX   8          /* containers within each other; our deepest message has 5 */
#define PROTO_SCAN_VALUES_MAX  (1u << 18) /* of one head, all depths; the library takes up to 48 bytes for each */
#define PROTO_SCAN_ENTRIES_MAX 64         /* of one map: looking up a name is linear */
#define PROTO_SCAN_KEY_MAX_LEN 31         /* a map's key */

/* 0 if the bytes are exactly one map within those limits, whose keys (at any depth) are strings, without extension
 * types; else -E_PROTO. Reads each byte at most once, allocates nothing. */
int proto_scan(const void *bytes, size_t n, struct reason *why);

#endif
