/* The host's side in tests: its log, settings and capabilities, natively. Nothing of it is in a component. */
#ifndef __wasm__

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testing_internal.h"

ab_test *ab_present_test;

void *ab_no_less(void *memory)
{
	if (memory == NULL)
		abort();
	return memory;
}

void ab_host_log(ab_level level, ab_str message)
{
	static const char *const levels[] = {"error", "warn", "info", "debug", "trace"};
	ab_test *test = ab_present_test;
	if (test == NULL || test->lines == AB_LINES)
		return;
	size_t size = strlen(levels[level]) + 2 + message.size + 1;
	char *line = ab_no_less(malloc(size));
	snprintf(line, size, "%s: %.*s", levels[level], (int)message.size, message.data);
	test->line[test->lines++] = line;
}

bool ab_host_config(ab_str key, ab_str *value)
{
	ab_test *test = ab_present_test;
	for (size_t at = 0; test != NULL && at < test->settings; at++) {
		if (ab_str_is(key, test->setting[at][0])) {
			*value = ab_str_of(test->setting[at][1]);
			return true;
		}
	}
	return false;
}

void ab_test_config(ab_test *test, const char *key, const char *value)
{
	if (test->settings == AB_SETTINGS)
		abort();
	test->setting[test->settings][0] = key;
	test->setting[test->settings++][1] = value;
}

/* ---- query ---- */

struct ab_test_table {
	const char *const *columns;
	ab_buffer rows;
	uint32_t count;
};

void ab_test_query(ab_test *test, ab_test_source *source)
{
	test->source = source;
}

void ab_test_head(ab_test_table *table, const char *const *columns)
{
	/* A list that stands in a function is gone when that returns. */
	size_t count = 1;
	while (columns[count - 1] != NULL)
		count += 1;
	table->columns = memcpy(ab_alloc(count * sizeof *columns), columns, count * sizeof *columns);
}

void ab_test_row(ab_test_table *table, const ab_value *row, size_t columns)
{
	ab_write_array(&table->rows, (uint32_t)columns);
	for (size_t at = 0; at < columns; at++)
		ab_write_value(&table->rows, &row[at]);
	table->count += 1;
}

static void write_answer(ab_buffer *out, ab_test_source *source, const ab_statement *statement, size_t set)
{
	ab_test_table table = {0};
	source(&table, statement->sql, statement->parameters + set * statement->width, statement->width);
	uint32_t columns = 0;
	while (table.columns != NULL && table.columns[columns] != NULL)
		columns += 1;
	ab_write_array(out, 2);
	ab_write_array(out, columns);
	for (uint32_t at = 0; at < columns; at++)
		ab_write_text(out, ab_str_of(table.columns[at]));
	ab_write_array(out, table.count);
	ab_buffer_bytes(out, table.rows.data, table.rows.size);
	free(table.rows.data);
}

bool ab_host_query(const ab_statement *statements, size_t count, ab_answers *answers, ab_failure *failure)
{
	ab_test *test = ab_present_test;
	*answers = (ab_answers){0};
	if (test == NULL || test->source == NULL)
		return ab_failure_is(failure, AB_FATAL, "query-denied",
				     "no question is answered here: say how with ab_test_query");
	ab_buffer out = {0};
	uint32_t sets = 0;
	for (size_t at = 0; at < count; at++)
		sets += (uint32_t)statements[at].sets;
	ab_write_array(&out, 2);
	ab_write_integer(&out, 1);
	ab_write_array(&out, sets);
	for (size_t at = 0; at < count; at++)
		for (size_t set = 0; set < statements[at].sets; set++)
			write_answer(&out, test->source, &statements[at], set);
	ab_str bytes = ab_copied((ab_str){(const char *)out.data, out.size});
	free(out.data);
	return ab_answers_of(bytes, answers, failure);
}

/* ---- state ---- */

/* The place of a key, or where it belongs: they are kept in the order of their bytes. */
static size_t place_of(const ab_test *test, ab_str key, bool *is_there)
{
	size_t at = 0;
	*is_there = false;
	for (; at < test->state_count; at++) {
		ab_str there = ab_str_of(test->state[at].key);
		size_t shorter = there.size < key.size ? there.size : key.size;
		int order = memcmp(there.data, key.data, shorter);
		*is_there = order == 0 && there.size == key.size;
		if (order > 0 || (order == 0 && there.size >= key.size))
			break;
	}
	return at;
}

bool ab_host_state_get(const ab_str *keys, size_t count, ab_str *values, ab_failure *failure)
{
	(void)failure;
	for (size_t at = 0; at < count; at++) {
		bool is_there;
		size_t place = place_of(ab_present_test, keys[at], &is_there);
		const ab_buffer *value = &ab_present_test->state[place].value;
		values[at] = is_there ? ab_copied((ab_str){(const char *)value->data, value->size}) : (ab_str){0};
	}
	return true;
}

bool ab_host_state_set(ab_str key, ab_str value, ab_failure *failure)
{
	(void)failure;
	ab_test *test = ab_present_test;
	bool is_there;
	size_t place = place_of(test, key, &is_there);
	ab_entry *entry = &test->state[place];
	if (!is_there) {
		if (test->state_count == AB_ENTRIES)
			abort();
		memmove(entry + 1, entry, (test->state_count - place) * sizeof *entry);
		test->state_count += 1;
		*entry = (ab_entry){.key = ab_no_less(strndup(key.data, key.size))};
	}
	entry->value.size = 0;
	ab_buffer_bytes(&entry->value, value.data, value.size);
	return true;
}

bool ab_host_state_delete(ab_str key, ab_failure *failure)
{
	(void)failure;
	ab_test *test = ab_present_test;
	bool is_there;
	size_t place = place_of(test, key, &is_there);
	ab_entry *entry = &test->state[place];
	if (is_there) {
		free(entry->key);
		free(entry->value.data);
		test->state_count -= 1;
		memmove(entry, entry + 1, (test->state_count - place) * sizeof *entry);
	}
	return true;
}

bool ab_host_state_keys(ab_str prefix, const ab_str *after, uint32_t limit, const ab_str **keys, size_t *count,
			ab_failure *failure)
{
	(void)failure;
	ab_test *test = ab_present_test;
	ab_str *found = ab_alloc(test->state_count * sizeof *found);
	bool is_there = false;
	size_t at = after == NULL ? 0 : place_of(test, *after, &is_there);
	*count = 0;
	for (at += is_there; at < test->state_count && *count < limit; at++) {
		ab_str key = ab_str_of(test->state[at].key);
		if (key.size >= prefix.size && (prefix.size == 0 || memcmp(key.data, prefix.data, prefix.size) == 0))
			found[(*count)++] = ab_copied(key);
	}
	*keys = found;
	return true;
}

ab_str ab_test_state(ab_test *test, const char *key)
{
	bool is_there;
	size_t place = place_of(test, ab_str_of(key), &is_there);
	const ab_buffer *value = &test->state[place].value;
	return is_there ? (ab_str){value->size == 0 ? "" : (const char *)value->data, value->size} : (ab_str){0};
}

/* ---- metrics ---- */

/* The number of `name{label="value"}`. */
static double *number_of(ab_test *test, const char *series, bool make)
{
	for (size_t at = 0; at < test->metric_count; at++)
		if (strcmp(test->metrics[at].key, series) == 0)
			return &test->metrics[at].number;
	if (!make)
		return NULL;
	if (test->metric_count == AB_ENTRIES)
		abort();
	ab_entry *entry = &test->metrics[test->metric_count++];
	*entry = (ab_entry){.key = ab_no_less(strdup(series))};
	return &entry->number;
}

static double *number(const char *name, const ab_label *labels, size_t count)
{
	ab_str series = ab_format("%s%s", name, count == 0 ? "" : "{");
	for (size_t at = 0; at < count; at++)
		series = ab_format("%s%s%.*s=\"%.*s\"%s", series.data, at == 0 ? "" : ",", (int)labels[at].name.size,
				   labels[at].name.data, (int)labels[at].value.size, labels[at].value.data,
				   at + 1 == count ? "}" : "");
	return number_of(ab_present_test, series.data, true);
}

bool ab_host_count(const char *name, const ab_label *labels, size_t count, uint64_t by, ab_failure *failure)
{
	(void)failure;
	*number(name, labels, count) += (double)by;
	return true;
}

bool ab_host_gauge(const char *name, const ab_label *labels, size_t count, double value, ab_failure *failure)
{
	(void)failure;
	*number(name, labels, count) = value;
	return true;
}

double ab_test_metric(ab_test *test, const char *series)
{
	const double *number = number_of(test, series, false);
	return number == NULL ? 0 : *number;
}

/* ---- http ---- */

void ab_test_http(ab_test *test, ab_test_server *server)
{
	test->server = server;
}

bool ab_http(const ab_request *request, ab_response *response, ab_failure *failure)
{
	ab_failure unwanted;
	ab_target target;
	*response = (ab_response){0};
	if (!ab_may_be_sent(request, &target, failure))
		return false;
	if (ab_present_test == NULL || ab_present_test->server == NULL)
		return ab_failure_is(failure, AB_FATAL, "http-denied",
				     "no request is answered here: say how with ab_test_http");
	return ab_present_test->server(request, response, failure == NULL ? &unwanted : failure);
}

void ab_test_clear_host(ab_test *test)
{
	for (size_t at = 0; at < test->state_count; at++) {
		free(test->state[at].key);
		free(test->state[at].value.data);
	}
	for (size_t at = 0; at < test->metric_count; at++)
		free(test->metrics[at].key);
}

#endif
