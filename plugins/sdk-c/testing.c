/* Tests of transforms, natively. Nothing of it is in a component. */
#ifndef __wasm__

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testing_internal.h"

/* What values point to: kept until the test ends. */
static ab_buffer *kept[1024];
static size_t kept_count;

/* ---- values ---- */

void ab_write_value(ab_buffer *out, const ab_value *value)
{
	uint8_t bytes[9] = {0xcb};
	uint64_t bits;
	switch (value->type) {
	case AB_ABSENT:
	case AB_NULL:
		ab_buffer_byte(out, 0xc0);
		break;
	case AB_BOOL:
		ab_buffer_byte(out, value->boolean ? 0xc3 : 0xc2);
		break;
	case AB_INTEGER:
		ab_write_integer(out, value->integer);
		break;
	case AB_FLOAT:
		memcpy(&bits, &value->real, sizeof bits);
		for (unsigned at = 0; at < 8; at++)
			bytes[1 + at] = (uint8_t)(bits >> (56 - 8 * at));
		ab_buffer_bytes(out, bytes, sizeof bytes);
		break;
	case AB_TEXT:
		ab_write_text(out, value->text);
		break;
	case AB_BYTES:
		ab_write_number_at(out, ab_write_later(out, 0xc6), (uint32_t)value->text.size);
		ab_buffer_bytes(out, value->text.data, value->text.size);
		break;
	case AB_JSON:
		ab_write_number_at(out, ab_write_later(out, 0xc9), (uint32_t)value->text.size);
		ab_buffer_byte(out, 1);
		ab_buffer_bytes(out, value->text.data, value->text.size);
		break;
	case AB_ARRAY:
		ab_write_array(out, value->count);
		ab_buffer_bytes(out, value->text.data, value->text.size);
		break;
	case AB_MAP:
		ab_write_map(out, value->count);
		ab_buffer_bytes(out, value->text.data, value->text.size);
		break;
	}
}

ab_value ab_of_absent(void)
{
	return (ab_value){.type = AB_ABSENT};
}

ab_value ab_of_null(void)
{
	return (ab_value){.type = AB_NULL};
}

ab_value ab_of_bool(bool value)
{
	return (ab_value){.type = AB_BOOL, .boolean = value};
}

ab_value ab_of_integer(int64_t value)
{
	return (ab_value){.type = AB_INTEGER, .integer = value};
}

ab_value ab_of_float(double value)
{
	return (ab_value){.type = AB_FLOAT, .real = value};
}

ab_value ab_of_text(const char *text)
{
	return (ab_value){.type = AB_TEXT, .text = ab_str_of(text)};
}

ab_value ab_of_bytes(const void *bytes, size_t size)
{
	return (ab_value){.type = AB_BYTES, .text = {bytes, size}};
}

ab_value ab_of_json(const char *json)
{
	return (ab_value){.type = AB_JSON, .text = ab_str_of(json)};
}

static ab_value container(ab_type type, const ab_value *items, size_t count)
{
	if (kept_count == sizeof kept / sizeof *kept)
		abort();
	ab_buffer *out = ab_no_less(calloc(1, sizeof *out));
	kept[kept_count++] = out;
	for (size_t at = 0; at < count; at++)
		ab_write_value(out, &items[at]);
	uint32_t number = (uint32_t)(type == AB_MAP ? count / 2 : count);
	return (ab_value){.type = type, .count = number, .text = {(const char *)out->data, out->size}};
}

ab_value ab_of_array(const ab_value *items, size_t count)
{
	return container(AB_ARRAY, items, count);
}

ab_value ab_of_map(const ab_value *entries, size_t count)
{
	return container(AB_MAP, entries, count);
}

/* ---- the request ---- */

static void write_row(ab_test *test, ab_buffer *out, ab_buffer *absent, uint32_t *absent_count, const ab_value *row,
		      size_t columns)
{
	test->columns = (uint32_t)columns;
	ab_write_array(out, (uint32_t)columns);
	for (size_t at = 0; at < columns; at++) {
		ab_write_value(out, &row[at]);
		if (row[at].type == AB_ABSENT) {
			ab_write_integer(absent, (int64_t)at);
			*absent_count += 1;
		}
	}
}

void ab_test_old(ab_test *test, const ab_value *row, size_t columns)
{
	test->old.size = 0;
	test->old_absent.size = 0;
	test->old_absent_count = 0;
	test->has_old = true;
	write_row(test, &test->old, &test->old_absent, &test->old_absent_count, row, columns);
}

static void change(ab_test *test, const char *operation, const char *id, const ab_value *row, size_t columns)
{
	ab_buffer *out = &test->changes;
	ab_buffer absent = {0};
	uint32_t absent_count = 0;
	/* One element more than this SDK reads: newer hosts may send them. */
	ab_write_array(out, 10);
	ab_write_text(out, ab_str_of(operation));
	ab_write_text(out, ab_str_of(id));
	if (row == NULL)
		ab_buffer_byte(out, 0xc0);
	else
		write_row(test, out, &absent, &absent_count, row, columns);
	if (test->has_old)
		ab_buffer_bytes(out, test->old.data, test->old.size);
	else
		ab_buffer_byte(out, 0xc0);
	ab_write_integer(out, 1);
	ab_write_integer(out, 0);
	ab_write_integer(out, test->count);
	uint32_t old_absent = test->has_old ? test->old_absent_count : 0;
	if (absent_count + old_absent == 0) {
		ab_buffer_byte(out, 0xc0);
	} else {
		ab_write_array(out, 2);
		ab_write_array(out, absent_count);
		ab_buffer_bytes(out, absent.data, absent.size);
		ab_write_array(out, old_absent);
		ab_buffer_bytes(out, test->old_absent.data, old_absent > 0 ? test->old_absent.size : 0);
	}
	ab_write_map(out, 0);
	ab_write_text(out, AB_STR("what a newer host sends"));
	free(absent.data);
	test->has_old = false;
	test->count += 1;
}

void ab_test_insert(ab_test *test, const char *id, const ab_value *row, size_t columns)
{
	change(test, "insert", id, row, columns);
}

void ab_test_read(ab_test *test, const char *id, const ab_value *row, size_t columns)
{
	change(test, "read", id, row, columns);
}

void ab_test_update(ab_test *test, const char *id, const ab_value *row, size_t columns)
{
	change(test, "update", id, row, columns);
}

void ab_test_delete(ab_test *test, const char *id, const ab_value *row, size_t columns)
{
	ab_test_old(test, row, columns);
	change(test, "delete", id, NULL, columns);
}

void ab_test_columns(ab_test *test, const char *const *names)
{
	test->names = names;
}

static void write_request(ab_test *test)
{
	ab_buffer *out = &test->request;
	const char *const *names = test->names != NULL ? test->names : ab_the_plugin.columns;
	ab_write_map(out, 5);
	ab_write_text(out, AB_STR("v"));
	ab_write_integer(out, 1);
	ab_write_text(out, AB_STR("new"));
	ab_write_array(out, 1);
	ab_write_map(out, 0);
	ab_write_text(out, AB_STR("relation"));
	ab_write_map(out, 3);
	ab_write_text(out, AB_STR("schema"));
	ab_write_text(out, AB_STR("public"));
	ab_write_text(out, AB_STR("columns"));
	uint32_t count = 0;
	while (names != NULL && names[count] != NULL)
		count += 1;
	ab_write_array(out, count);
	for (uint32_t at = 0; at < count; at++)
		ab_write_text(out, ab_str_of(names[at]));
	ab_write_text(out, AB_STR("key"));
	ab_write_array(out, 0);
	ab_write_text(out, AB_STR("origin"));
	ab_write_text(out, AB_STR("stream"));
	ab_write_text(out, AB_STR("changes"));
	ab_write_array(out, test->count);
	ab_buffer_bytes(out, test->changes.data, test->changes.size);
}

/* ---- the reply ---- */

static ab_str bytes_or_text(ab_reader *reader)
{
	ab_value value = ab_read_value(reader);
	if (value.type != AB_BYTES && value.type != AB_TEXT)
		reader->bad = true;
	return value.text;
}

static void read_answer(ab_reader *reader, ab_answer *answer)
{
	static const char *const classes[] = {"retry", "poison", "fatal"};
	uint32_t parts;
	ab_read_array(reader, &parts);
	uint64_t tag = ab_read_unsigned(reader);
	answer->outcome = (ab_outcome)tag;
	if (tag == AB_EMIT) {
		uint32_t count;
		ab_read_array(reader, &count);
		ab_emitted *documents = ab_no_less(calloc(count + (size_t)1, sizeof *documents));
		for (uint32_t at = 0; at < count; at++) {
			uint32_t three;
			ab_read_array(reader, &three);
			documents[at].id = ab_read_text(reader);
			documents[at].destination = ab_read_text(reader);
			documents[at].text = bytes_or_text(reader);
		}
		answer->document = documents;
		answer->documents = count;
	} else if (tag == AB_FAILED) {
		ab_str name = ab_read_text(reader);
		for (size_t at = 0; at < 3; at++)
			if (ab_str_is(name, classes[at]))
				answer->failure_class = (ab_class)at;
		answer->code = ab_read_text(reader);
		answer->message = ab_read_text(reader);
	}
}

static void run(ab_test *test)
{
	if (test->ran)
		return;
	test->ran = true;
	write_request(test);
	test->answers = ab_no_less(calloc(test->count + (size_t)1, sizeof *test->answers));
	test->failed = !ab_run(&ab_the_plugin, test->request.data, test->request.size, &test->reply, &test->failure);
	if (test->failed)
		return;
	ab_reader reader = {(const uint8_t *)test->reply.data, (const uint8_t *)test->reply.data + test->reply.size, false};
	uint32_t count;
	ab_read_array(&reader, &count);
	ab_test_expect(test, count == test->count, "there is an outcome for each change", __FILE__, __LINE__);
	for (uint32_t at = 0; at < count && at < test->count; at++)
		read_answer(&reader, &test->answers[at]);
	ab_test_expect(test, !reader.bad && reader.at == reader.end, "the reply can be read", __FILE__, __LINE__);
}

const ab_answer *ab_test_answer(ab_test *test, size_t at)
{
	run(test);
	if (test->failed) {
		fprintf(stderr, "  the whole batch failed: %.*s: %.*s\n", (int)test->failure.code.size,
			test->failure.code.data, (int)test->failure.message.size, test->failure.message.data);
		test->wrong = true;
	}
	/* There is one more than there are changes. */
	return &test->answers[at < test->count ? at : test->count];
}

const ab_failure *ab_test_failure(ab_test *test)
{
	if (ab_the_plugin.transform != NULL)
		run(test);
	return test->failed ? &test->failure : NULL;
}

size_t ab_test_lines(ab_test *test)
{
	if (ab_the_plugin.transform != NULL)
		run(test);
	return test->lines;
}

const char *ab_test_line(ab_test *test, size_t line)
{
	return line < ab_test_lines(test) ? test->line[line] : "";
}

/* ---- expectations ---- */

void ab_test_expect(ab_test *test, bool holds, const char *what, const char *file, int line)
{
	if (holds)
		return;
	fprintf(stderr, "  %s:%d: not so: %s\n", file, line, what);
	test->wrong = true;
}

void ab_test_expect_text(ab_test *test, ab_str text, const char *expected, const char *file, int line)
{
	if (ab_str_is(text, expected))
		return;
	fprintf(stderr, "  %s:%d:\n    expected %s\n    there is %.*s\n", file, line, expected, (int)text.size,
		text.data == NULL ? "" : text.data);
	test->wrong = true;
}

void ab_test_expect_document(ab_test *test, size_t change, const char *expected, const char *file, int line)
{
	const ab_answer *answer = ab_test_answer(test, change);
	if (answer->outcome == AB_EMIT && answer->documents == 1) {
		ab_test_expect_text(test, answer->document->text, expected, file, line);
		return;
	}
	static const char *const outcomes[] = {"emits", "has no document", "is skipped", "failed"};
	fprintf(stderr, "  %s:%d: change %zu %s%s%.*s, with %zu documents\n", file, line, change,
		outcomes[answer->outcome], answer->outcome == AB_FAILED ? ": " : "", (int)answer->message.size,
		answer->message.size == 0 ? "" : answer->message.data, answer->documents);
	test->wrong = true;
}

void ab_test_expect_failure(ab_test *test, size_t change, const char *code, const char *file, int line)
{
	const ab_answer *answer = ab_test_answer(test, change);
	ab_test_expect(test, answer->outcome == AB_FAILED, "the change failed", file, line);
	if (answer->outcome == AB_FAILED)
		ab_test_expect_text(test, answer->code, code, file, line);
}

static void clear(ab_test *test)
{
	for (uint32_t at = 0; test->answers != NULL && at < test->count; at++)
		free((void *)(uintptr_t)test->answers[at].document);
	for (size_t at = 0; at < test->lines; at++)
		free(test->line[at]);
	free(test->answers);
	free(test->changes.data);
	free(test->old.data);
	free(test->old_absent.data);
	free(test->request.data);
	ab_test_clear_host(test);
	ab_test_clear_sink(test);
	while (kept_count > 0) {
		ab_buffer *buffer = kept[--kept_count];
		free(buffer->data);
		free(buffer);
	}
}

int ab_test_all(ab_test_function *const *tests, size_t count)
{
	size_t failed = 0;
	for (size_t at = 0; at < count; at++) {
		ab_test test = {0};
		ab_present_test = &test;
		tests[at](&test);
		ab_present_test = NULL;
		if (test.wrong)
			fprintf(stderr, "not ok %zu\n", at + 1);
		failed += test.wrong;
		clear(&test);
	}
	printf("%zu passed, %zu failed\n", count - failed, failed);
	return failed > 0;
}

#endif
