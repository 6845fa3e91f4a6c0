/* Finding the files that a job names and joining them into one text. Private to data.c. */
#ifndef SHOAL_MODEL_DATA_FILES_H
#define SHOAL_MODEL_DATA_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/base/status.h"

/* Reads paths[0..n_paths) as data.h describes. *ret_text (mem_free): *ret_n bytes, more than 0. -E_NOENT: nothing is
 * there; -E_CONFIG: it is not text, or empty; -E_IO; -E_NOMEM. */
int data_files_read(char *const *paths, size_t n_paths, uint8_t **ret_text, size_t *ret_n, struct reason *why);

#endif
