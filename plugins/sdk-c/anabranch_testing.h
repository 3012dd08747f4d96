/*
 * Tests of a transform or a sink, natively: whole batches as the host sends them, outcomes as it reads them. Compile the test with
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
#include "anabranch_http.h"
#include "anabranch_sink.h"

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

/* ---- the host's capabilities: what is not told here is refused ---- */

/* One answer of the source. */
typedef struct ab_test_table ab_test_table;
/* Answers a statement for one set of parameters: `ab_test_head` and, for each row, `ab_test_row`. */
typedef void ab_test_source(ab_test_table *answer, ab_str sql, const ab_str *parameters, size_t width);
void ab_test_query(ab_test *test, ab_test_source *source);
void ab_test_head(ab_test_table *answer, const char *const *columns);
void ab_test_row(ab_test_table *answer, const ab_value *row, size_t columns);

/* Answers a request, or fails, as `ab_http` does. */
typedef bool ab_test_server(const ab_request *request, ab_response *response, ab_failure *failure);
void ab_test_http(ab_test *test, ab_test_server *server);

/* What stands in the store under a key; `data` is NULL where nothing does. Each test begins with an empty store. */
ab_str ab_test_state(ab_test *test, const char *key);
/* What a number came to: of `name`, or `name{label="value"}`. */
double ab_test_metric(ab_test *test, const char *series);

/* ---- sinks ---- */

/* Opens the sink with what `ab_test_config` has set; false if it failed: see `ab_test_failure`. */
bool ab_test_open(ab_test *test);
/* Documents for the next delivery. */
void ab_test_upsert(ab_test *test, const char *destination, const char *id, const char *json);
void ab_test_remove(ab_test *test, const char *destination, const char *id);
/* Delivers them as one batch; false if it failed whole. */
bool ab_test_deliver(ab_test *test);
bool ab_test_purge(ab_test *test, const char *destination);
/* The next delivery is for a place. */
void ab_test_place(ab_test *test, const char *place);
bool ab_test_begin(ab_test *test, const char *destination, const char *place, bool *is_seen);
bool ab_test_switch(ab_test *test, const char *destination, const char *place);
bool ab_test_abandon(ab_test *test, const char *destination, const char *place);

typedef struct ab_test_result {
	bool accepted;
	ab_failure failure;
	uint32_t after_ms;
} ab_test_result;

/* What became of a document of the last delivery, from 0. */
const ab_test_result *ab_test_result_of(ab_test *test, size_t document);
#define AB_EXPECT_ACCEPTED(test, document) ab_test_expect_accepted(test, document, __FILE__, __LINE__)
/* It was refused with this code. */
#define AB_EXPECT_REFUSED(test, document, code) ab_test_expect_refused(test, document, code, __FILE__, __LINE__)
void ab_test_expect_accepted(ab_test *test, size_t document, const char *file, int line);
void ab_test_expect_refused(ab_test *test, size_t document, const char *code, const char *file, int line);

/* ---- outcomes of a transform; the first that is asked for runs the batch ---- */

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
