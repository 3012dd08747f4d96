/* Tests of sinks, natively. Nothing of it is in a component. */
#ifndef __wasm__

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "testing_internal.h"

bool ab_test_open(ab_test *test)
{
	ab_buffer settings = {0};
	ab_buffer_byte(&settings, '{');
	for (size_t at = 0; at < test->settings; at++) {
		if (at > 0)
			ab_buffer_byte(&settings, ',');
		ab_json_quoted(&settings, ab_str_of(test->setting[at][0]));
		ab_buffer_byte(&settings, ':');
		ab_json_quoted(&settings, ab_str_of(test->setting[at][1]));
	}
	ab_buffer_byte(&settings, '}');
	test->failed = !ab_run_open(&ab_the_plugin, (ab_str){(const char *)settings.data, settings.size}, &test->failure);
	free(settings.data);
	return !test->failed;
}

static void document(ab_test *test, const char *operation, const char *destination, const char *id, const char *json)
{
	ab_buffer *out = &test->documents;
	/* One element more than this SDK reads: newer hosts may send them. */
	ab_write_array(out, 8);
	ab_write_text(out, ab_str_of(operation));
	ab_write_text(out, ab_str_of(id));
	/* Each has a destination of its own here; hosts name each once. */
	ab_write_integer(out, test->document_count);
	if (json == NULL) {
		ab_buffer_byte(out, 0xc0);
	} else {
		size_t size = strlen(json);
		ab_write_number_at(out, ab_write_later(out, 0xc6), (uint32_t)size);
		ab_buffer_bytes(out, json, size);
	}
	ab_write_integer(out, 1);
	ab_write_integer(out, 0);
	ab_write_map(out, 0);
	ab_write_text(out, AB_STR("what a newer host sends"));
	ab_write_text(&test->destinations, ab_str_of(destination));
	test->document_count += 1;
}

void ab_test_upsert(ab_test *test, const char *destination, const char *id, const char *json)
{
	document(test, "upsert", destination, id, json);
}

void ab_test_remove(ab_test *test, const char *destination, const char *id)
{
	document(test, "delete", destination, id, NULL);
}

static void write_delivery(ab_test *test)
{
	ab_buffer *out = &test->request;
	out->size = 0;
	ab_write_map(out, test->place == NULL ? 7 : 8);
	ab_write_text(out, AB_STR("v"));
	ab_write_integer(out, 1);
	ab_write_text(out, AB_STR("new"));
	ab_write_array(out, 0);
	ab_write_text(out, AB_STR("entity"));
	ab_write_text(out, AB_STR("public.test"));
	ab_write_text(out, AB_STR("origin"));
	ab_write_text(out, AB_STR("stream"));
	ab_write_text(out, AB_STR("generation"));
	ab_write_integer(out, 1);
	if (test->place != NULL) {
		ab_write_text(out, AB_STR("place"));
		ab_write_text(out, ab_str_of(test->place));
		test->place = NULL;
	}
	ab_write_text(out, AB_STR("destinations"));
	ab_write_array(out, test->document_count);
	ab_buffer_bytes(out, test->destinations.data, test->destinations.size);
	ab_write_text(out, AB_STR("documents"));
	ab_write_array(out, test->document_count);
	ab_buffer_bytes(out, test->documents.data, test->documents.size);
}

static void read_result(ab_reader *reader, ab_test_result *result)
{
	static const char *const classes[] = {"retry", "poison", "fatal"};
	uint32_t parts;
	ab_read_array(reader, &parts);
	result->accepted = ab_read_unsigned(reader) == 0;
	if (result->accepted)
		return;
	ab_str name = ab_read_text(reader);
	for (size_t at = 0; at < 3; at++)
		if (ab_str_is(name, classes[at]))
			result->failure.failure_class = (ab_class)at;
	result->failure.code = ab_read_text(reader);
	result->failure.message = ab_read_text(reader);
	result->after_ms = parts > 4 ? (uint32_t)ab_read_unsigned(reader) : 0;
}

bool ab_test_deliver(ab_test *test)
{
	write_delivery(test);
	uint32_t sent = test->document_count;
	test->documents.size = 0;
	test->destinations.size = 0;
	test->document_count = 0;
	test->result_count = 0;
	test->failed = !ab_run_deliver(&ab_the_plugin, test->request.data, test->request.size, &test->reply, &test->failure);
	if (test->failed)
		return false;
	free(test->results);
	test->results = ab_no_less(calloc(sent + (size_t)1, sizeof *test->results));
	ab_reader reader = {(const uint8_t *)test->reply.data, (const uint8_t *)test->reply.data + test->reply.size, false};
	uint32_t count;
	ab_read_array(&reader, &count);
	ab_test_expect(test, count == sent, "there is a result for each document", __FILE__, __LINE__);
	for (uint32_t at = 0; at < count && at < sent; at++)
		read_result(&reader, &test->results[at]);
	ab_test_expect(test, !reader.bad && reader.at == reader.end, "the reply can be read", __FILE__, __LINE__);
	test->result_count = sent;
	return true;
}

bool ab_test_purge(ab_test *test, const char *destination)
{
	test->failed = !ab_run_purge(&ab_the_plugin, ab_str_of(destination), &test->failure);
	return !test->failed;
}

void ab_test_place(ab_test *test, const char *place)
{
	test->place = place;
}

bool ab_test_begin(ab_test *test, const char *destination, const char *place, bool *is_seen)
{
	test->failed =
		!ab_run_begin(&ab_the_plugin, ab_str_of(destination), ab_str_of(place), is_seen, &test->failure);
	return !test->failed;
}

bool ab_test_switch(ab_test *test, const char *destination, const char *place)
{
	test->failed = !ab_run_switch(&ab_the_plugin, ab_str_of(destination), ab_str_of(place), &test->failure);
	return !test->failed;
}

bool ab_test_abandon(ab_test *test, const char *destination, const char *place)
{
	test->failed = !ab_run_abandon(&ab_the_plugin, ab_str_of(destination), ab_str_of(place), &test->failure);
	return !test->failed;
}

const ab_test_result *ab_test_result_of(ab_test *test, size_t document)
{
	static const ab_test_result none;
	if (document < test->result_count)
		return &test->results[document];
	fprintf(stderr, "  there is no result of document %zu", document);
	if (test->failed)
		fprintf(stderr, ": %.*s: %.*s", (int)test->failure.code.size, test->failure.code.data,
			(int)test->failure.message.size, test->failure.message.data);
	fprintf(stderr, "\n");
	test->wrong = true;
	return &none;
}

void ab_test_expect_accepted(ab_test *test, size_t document, const char *file, int line)
{
	const ab_test_result *result = ab_test_result_of(test, document);
	if (result->accepted)
		return;
	fprintf(stderr, "  %s:%d: document %zu was refused: %.*s\n", file, line, document,
		(int)result->failure.message.size, result->failure.message.size == 0 ? "" : result->failure.message.data);
	test->wrong = true;
}

void ab_test_expect_refused(ab_test *test, size_t document, const char *code, const char *file, int line)
{
	const ab_test_result *result = ab_test_result_of(test, document);
	ab_test_expect(test, !result->accepted, "the document was refused", file, line);
	if (!result->accepted)
		ab_test_expect_text(test, result->failure.code, code, file, line);
}

void ab_test_clear_sink(ab_test *test)
{
	free(test->documents.data);
	free(test->destinations.data);
	free(test->results);
}

#endif
