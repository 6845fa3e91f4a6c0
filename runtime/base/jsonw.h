/* Writing JSON: one object a line, for events, logs and headers. Writes into a growing text; never fails midway (an
 * allocation failure is remembered and told by jsonw_text). Not thread-safe. Reading JSON is runtime/store's business.
 */
#ifndef SHOAL_RUNTIME_BASE_JSONW_H
#define SHOAL_RUNTIME_BASE_JSONW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct jsonw {
    char *text;
    size_t len, cap;
    bool oom;
    bool comma; /* the next value needs a comma before it */
};

void jsonw_init(struct jsonw *w);
void jsonw_done(struct jsonw *w);

/* key is NULL inside arrays and for the outermost value. Strings are escaped; invalid UTF-8 becomes U+FFFD. Non-finite
 * numbers become null. */
void jsonw_object(struct jsonw *w, const char *key);
void jsonw_object_end(struct jsonw *w);
void jsonw_array(struct jsonw *w, const char *key);
void jsonw_array_end(struct jsonw *w);
void jsonw_str(struct jsonw *w, const char *key, const char *value);
void jsonw_int(struct jsonw *w, const char *key, int64_t value);
void jsonw_num(struct jsonw *w, const char *key, double value); /* shortest form that reads back equal */
void jsonw_bool(struct jsonw *w, const char *key, bool value);

/* The text so far, NUL-terminated, owned by w; NULL if an allocation failed. */
const char *jsonw_text(const struct jsonw *w);

#endif
