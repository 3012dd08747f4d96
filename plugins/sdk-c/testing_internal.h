/* What the files of tests share; nothing for plugins. */
#ifndef ANABRANCH_TESTING_INTERNAL_H
#define ANABRANCH_TESTING_INTERNAL_H

#include "anabranch_testing.h"
#include "internal.h"

#define AB_LINES 64
#define AB_SETTINGS 16
#define AB_ENTRIES 256

/* A key of the store, or a number. */
typedef struct ab_entry {
	char *key;
	ab_buffer value;
	double number;
} ab_entry;

struct ab_test {
	/* A transform's. */
	ab_buffer changes;
	uint32_t count;
	uint32_t columns;
	const char *const *names;
	bool has_old;
	ab_buffer old;
	ab_buffer old_absent;
	uint32_t old_absent_count;
	ab_buffer request;
	ab_str reply;
	bool ran;
	bool failed;
	ab_failure failure;
	ab_answer *answers;
	/* A sink's. */
	ab_buffer documents;
	ab_buffer destinations;
	uint32_t document_count;
	const char *place;
	ab_test_result *results;
	size_t result_count;
	/* The host's. */
	const char *setting[AB_SETTINGS][2];
	size_t settings;
	char *line[AB_LINES];
	size_t lines;
	ab_entry state[AB_ENTRIES];
	size_t state_count;
	ab_entry metrics[AB_ENTRIES];
	size_t metric_count;
	ab_test_source *source;
	ab_test_server *server;
	bool wrong;
};

/* The test that runs: the host's side has no other way to it. */
extern ab_test *ab_present_test;

void *ab_no_less(void *memory);
void ab_write_value(ab_buffer *out, const ab_value *value);
void ab_test_clear_host(ab_test *test);
void ab_test_clear_sink(ab_test *test);

#endif
