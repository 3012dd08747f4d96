/*
 * Tests of a transform, natively: whole batches as the host sends them, outcomes as it reads them. Compile the test with
 * the plugin's sources and the SDK's.
 *
 *     static void an_active_product_is_found(ab_test *t)
 *     {
 *             ab_test_insert(t, "1", AB_ROW(ab_of_text("Kettle"), ab_of_null(), ab_of_bool(true)));
 *             AB_EXPECT_DOCUMENT(t, 0, "{\"title\":\"Kettle\"}");
 *     }
 *
 *     AB_TESTS(an_active_product_is_found)
 */
#ifndef ANABRANCH_TESTING_H
#define ANABRANCH_TESTING_H

#include "anabranch.h"

/* The plugin's batch, and what came of it. */
typedef struct ab_test ab_test;

/* ---- values of a row, in the order of `.columns` ---- */

#define AB_ROW(...) \
	(const ab_value[]){__VA_ARGS__}, sizeof((const ab_value[]){__VA_ARGS__}) / sizeof(ab_value)

ab_value ab_of_absent(void);
ab_value ab_of_null(void);
ab_value ab_of_bool(bool value);
ab_value ab_of_integer(int64_t value);
ab_value ab_of_float(double value);
ab_value ab_of_text(const char *text);
ab_value ab_of_bytes(const void *bytes, size_t size);
ab_value ab_of_json(const char *json);
/* `ab_of_array(AB_ROW(ab_of_text("a"), ab_of_null()))` */
ab_value ab_of_array(const ab_value *items, size_t count);
/* Keys and values in turn: `ab_of_map(AB_ROW(ab_of_text("key"), ab_of_text("value")))` */
ab_value ab_of_map(const ab_value *entries, size_t count);

/* ---- changes ---- */

void ab_test_insert(ab_test *test, const char *id, const ab_value *row, size_t columns);
void ab_test_read(ab_test *test, const char *id, const ab_value *row, size_t columns);
/* What follows is the old row. */
void ab_test_delete(ab_test *test, const char *id, const ab_value *row, size_t columns);
/* An update with its old row: call `ab_test_old` first, if there is one. */
void ab_test_update(ab_test *test, const char *id, const ab_value *row, size_t columns);
/* The old row of the next change. */
void ab_test_old(ab_test *test, const ab_value *row, size_t columns);
/* The names of the columns, for a plugin that names none. Ends with NULL: AB_LIST. */
void ab_test_columns(ab_test *test, const char *const *names);
/* A setting of the mapping. */
void ab_test_config(ab_test *test, const char *key, const char *value);

/* ---- outcomes; the first that is asked for runs the batch ---- */

typedef struct ab_emitted {
	ab_str id;          /* `data` is NULL for the change's own */
	ab_str destination; /* `data` is NULL for the mapping's */
	ab_str text;        /* JSON */
} ab_emitted;

typedef struct ab_answer {
	ab_outcome outcome;
	size_t documents;
	const ab_emitted *document;
	ab_class failure_class;
	ab_str code;
	ab_str message;
} ab_answer;

/* The outcome of a change, from 0. */
const ab_answer *ab_test_answer(ab_test *test, size_t change);
/* The failure of the whole batch; NULL if it was answered. */
const ab_failure *ab_test_failure(ab_test *test);
/* Lines that were logged so far, and one of them. */
size_t ab_test_lines(ab_test *test);
const char *ab_test_line(ab_test *test, size_t line);

/* ---- expectations ---- */

#define AB_EXPECT(test, condition) ab_test_expect(test, condition, #condition, __FILE__, __LINE__)
#define AB_EXPECT_TEXT(test, text, expected) ab_test_expect_text(test, text, expected, __FILE__, __LINE__)
/* The change has this one document. */
#define AB_EXPECT_DOCUMENT(test, change, expected) \
	ab_test_expect_document(test, change, expected, __FILE__, __LINE__)
/* The change failed with this code. */
#define AB_EXPECT_FAILURE(test, change, code) ab_test_expect_failure(test, change, code, __FILE__, __LINE__)

void ab_test_expect(ab_test *test, bool holds, const char *what, const char *file, int line);
void ab_test_expect_text(ab_test *test, ab_str text, const char *expected, const char *file, int line);
void ab_test_expect_document(ab_test *test, size_t change, const char *expected, const char *file, int line);
void ab_test_expect_failure(ab_test *test, size_t change, const char *code, const char *file, int line);

typedef void ab_test_function(ab_test *test);

/* Runs all; the program's exit code. */
int ab_test_all(ab_test_function *const *tests, size_t count);

/* The program. */
#define AB_TESTS(...)                                                                            \
	int main(void)                                                                           \
	{                                                                                        \
		static ab_test_function *const tests[] = {__VA_ARGS__};                          \
		return ab_test_all(tests, sizeof tests / sizeof *tests);                         \
	}

#endif
