/* The SDK's own tests: every kind of value, what is wrong in a transform, what is wrong in a request. */
#include <stdio.h>
#include <string.h>

#include "anabranch_testing.h"

enum { WHAT, VALUE };

static bool is(ab_change *change, const char *what)
{
	return ab_str_is(ab_text(change, WHAT), what);
}

/* Does what the first column says with the second. */
static ab_outcome transform(ab_change *change)
{
	ab_json *out;
	ab_str text;
	if (is(change, "none"))
		return AB_NONE;
	if (is(change, "skip"))
		return AB_SKIP;
	if (is(change, "fail"))
		return ab_failf(change, AB_RETRY, "later", "try %d times", 3);
	if (is(change, "failed without a reason"))
		return AB_FAILED;
	if (is(change, "emit without a document"))
		return AB_EMIT;
	if (is(change, "two")) {
		ab_str id = AB_STR("a");
		ab_str place = AB_STR("elsewhere");
		ab_put_integer(ab_document_as(change, &id, NULL), 1);
		ab_put_integer(ab_document_as(change, NULL, &place), 2);
		return AB_EMIT;
	}
	out = ab_document(change);
	if (is(change, "put")) {
		ab_put(out, ab_get(change, VALUE));
	} else if (is(change, "text")) {
		ab_put_text(out, ab_text(change, VALUE));
	} else if (is(change, "integer")) {
		ab_put_integer(out, ab_integer(change, VALUE));
	} else if (is(change, "bool")) {
		ab_put_bool(out, ab_bool(change, VALUE));
	} else if (is(change, "number")) {
		ab_put_number(out, ab_text(change, VALUE));
	} else if (is(change, "by name")) {
		ab_put(out, ab_get(change, ab_column(change, "value")));
	} else if (is(change, "no such name")) {
		ab_put(out, ab_get(change, ab_column(change, "price")));
	} else if (is(change, "old")) {
		ab_array(out);
		ab_put(out, ab_get_old(change, VALUE));
		ab_put_bool(out, ab_get_old(change, VALUE)->type == AB_ABSENT);
		ab_end(out);
	} else if (is(change, "open")) {
		ab_object(out);
	} else if (is(change, "no value")) {
		ab_object(out);
		ab_key(out, "a");
		ab_end(out);
	} else if (is(change, "no key")) {
		ab_object(out);
		ab_put_null(out);
		ab_end(out);
	} else if (is(change, "two values")) {
		ab_put_null(out);
		ab_put_null(out);
	} else if (is(change, "one end too many")) {
		ab_put_null(out);
		ab_end(out);
	} else if (is(change, "deep")) {
		for (int at = 0; at < 200; at++)
			ab_array(out);
		for (int at = 0; at < 200; at++)
			ab_end(out);
	} else if (is(change, "config")) {
		ab_put_text(out, ab_config("setting", &text) ? text : AB_STR("none"));
		ab_logf(AB_WARN, "line %d", 7);
		ab_log(AB_DEBUG, "another");
	} else if (is(change, "memory")) {
		for (size_t at = 1; at < 100; at++)
			memset(ab_alloc(at * 1000), 1, at * 1000);
		ab_put_text(out, ab_format("%s-%d", "a", 1));
	} else {
		ab_object(out);
		ab_key(out, "operation");
		ab_put_integer(out, change->operation);
		ab_key(out, "sequence");
		ab_put_integer(out, (int64_t)change->sequence);
		ab_key(out, "id");
		ab_put_text(out, change->id);
		ab_end(out);
	}
	return AB_EMIT;
}

AB_PLUGIN(.tables = AB_LIST("public.odd", "a.\"b\""), .columns = AB_LIST("what", "value"), .transform = transform);

static void put(ab_test *t, ab_value value)
{
	ab_test_insert(t, "1", AB_ROW(ab_of_text("put"), value));
}

static void every_value_becomes_json(ab_test *t)
{
	put(t, ab_of_null());
	put(t, ab_of_absent());
	put(t, ab_of_bool(true));
	put(t, ab_of_integer(INT64_MIN));
	put(t, ab_of_integer(INT64_MAX));
	put(t, ab_of_float(0.1));
	put(t, ab_of_float(1.0 / 3));
	put(t, ab_of_float(0.0 / 0.0));
	put(t, ab_of_text("a \"b\" \\ c\n\t\r\x01 \xf0\x9f\x98\x80"));
	put(t, ab_of_bytes("\0\xff\x10\x20", 4));
	put(t, ab_of_json(" {\"x\": 1e400}"));
	put(t, ab_of_array(AB_ROW(ab_of_null(), ab_of_array(AB_ROW(ab_of_integer(-7))), ab_of_array(NULL, 0))));
	put(t, ab_of_map(AB_ROW(ab_of_text("a\""), ab_of_text("1"), ab_of_text("b"), ab_of_null())));
	static const char *const expected[] = {"null", "null", "true", "-9223372036854775808", "9223372036854775807", "0.1",
		"0.3333333333333333", "null", "\"a \\\"b\\\" \\\\ c\\n\\t\\r\\u0001 \xf0\x9f\x98\x80\"", "\"AP8QIA==\"",
		" {\"x\": 1e400}", "[null,[-7],[]]", "{\"a\\\"\":\"1\",\"b\":null}"};
	for (size_t at = 0; at < sizeof expected / sizeof *expected; at++)
		AB_EXPECT_DOCUMENT(t, at, expected[at]);
}

/* The writer looks at eight bytes at once. */
static void what_is_escaped_is_found_anywhere(ab_test *t)
{
	static char texts[3 * 20][21];
	static char expected[3 * 20][40];
	static const char *const escaped[] = {"\\\"", "\\\\", "\\u001f"};
	for (size_t at = 0; at < 60; at++) {
		memset(texts[at], at % 2 ? 'x' : '!', 20);
		size_t place = at % 20;
		texts[at][place] = "\"\\\x1f"[at / 20];
		snprintf(expected[at], sizeof expected[at], "\"%.*s%s%s\"", (int)place, texts[at], escaped[at / 20],
			 texts[at] + place + 1);
		put(t, ab_of_text(texts[at]));
	}
	for (size_t at = 0; at < 60; at++)
		AB_EXPECT_DOCUMENT(t, at, expected[at]);
}

static void long_texts_and_many_items_are_read(ab_test *t)
{
	static char text[70000];
	memset(text, 'x', sizeof text - 1);
	ab_value items[300];
	for (size_t at = 0; at < 300; at++)
		items[at] = ab_of_integer((int64_t)at * 100000);
	put(t, ab_of_text(text));
	put(t, ab_of_array(items, 300));
	AB_EXPECT(t, ab_test_answer(t, 0)->document->text.size == sizeof text + 1);
	AB_EXPECT(t, strncmp(ab_test_answer(t, 1)->document->text.data, "[0,100000,", 10) == 0);
}

static void outcomes_are_told_apart(ab_test *t)
{
	static const char *const words[] = {"none", "skip", "fail", "other", "two"};
	for (size_t at = 0; at < 5; at++)
		ab_test_update(t, "k", AB_ROW(ab_of_text(words[at]), ab_of_null()));
	AB_EXPECT(t, ab_test_answer(t, 0)->outcome == AB_NONE);
	AB_EXPECT(t, ab_test_answer(t, 1)->outcome == AB_SKIP);
	AB_EXPECT_FAILURE(t, 2, "later");
	AB_EXPECT(t, ab_test_answer(t, 2)->failure_class == AB_RETRY);
	AB_EXPECT_TEXT(t, ab_test_answer(t, 2)->message, "try 3 times");
	AB_EXPECT_DOCUMENT(t, 3, "{\"operation\":1,\"sequence\":3,\"id\":\"k\"}");
	const ab_answer *two = ab_test_answer(t, 4);
	AB_EXPECT(t, two->documents == 2);
	AB_EXPECT_TEXT(t, two->document[0].id, "a");
	AB_EXPECT(t, two->document[0].destination.data == NULL && two->document[1].id.data == NULL);
	AB_EXPECT_TEXT(t, two->document[1].destination, "elsewhere");
	AB_EXPECT_TEXT(t, two->document[1].text, "2");
}

static void a_value_of_another_type_is_poison(ab_test *t)
{
	ab_test_insert(t, "1", AB_ROW(ab_of_text("integer"), ab_of_text("seven")));
	ab_test_insert(t, "2", AB_ROW(ab_of_text("text"), ab_of_null()));
	ab_test_insert(t, "3", AB_ROW(ab_of_text("bool"), ab_of_absent()));
	ab_test_insert(t, "4", AB_ROW(ab_of_text("integer"), ab_of_integer(7)));
	for (size_t at = 0; at < 3; at++) {
		AB_EXPECT_FAILURE(t, at, "column");
		AB_EXPECT(t, ab_test_answer(t, at)->failure_class == AB_POISON);
	}
	AB_EXPECT_TEXT(t, ab_test_answer(t, 1)->message, "the column value is NULL where text is read");
	AB_EXPECT_DOCUMENT(t, 3, "7");
}

static void numbers_keep_their_digits(ab_test *t)
{
	static const char *const numbers[] = {"0", "-0.5000", "1234567890123456789012345678901234567890.50"};
	static const char *const others[] = {"NaN", "-Infinity", "", "-", "01", "1.", ".5", "1e5", "0x1", "1 "};
	for (size_t at = 0; at < 3; at++)
		ab_test_insert(t, "1", AB_ROW(ab_of_text("number"), ab_of_text(numbers[at])));
	for (size_t at = 0; at < 10; at++)
		ab_test_insert(t, "1", AB_ROW(ab_of_text("number"), ab_of_text(others[at])));
	for (size_t at = 0; at < 13; at++)
		AB_EXPECT_DOCUMENT(t, at, at < 3 ? numbers[at] : "null");
}

static void documents_that_are_no_json_fail(ab_test *t)
{
	static const char *const words[] = {"open", "no value", "no key", "two values", "one end too many", "deep",
					    "emit without a document", "failed without a reason", "no such name"};
	static const char *const codes[] = {"document", "document", "document", "document", "document", "document",
					    "answer", "exception", "column"};
	for (size_t at = 0; at < 9; at++)
		ab_test_insert(t, "1", AB_ROW(ab_of_text(words[at]), ab_of_null()));
	ab_test_insert(t, "1", AB_ROW(ab_of_text("by name"), ab_of_integer(1)));
	for (size_t at = 0; at < 9; at++)
		AB_EXPECT_FAILURE(t, at, codes[at]);
	AB_EXPECT_DOCUMENT(t, 9, "1");
}

static void old_rows_are_told_from_none(ab_test *t)
{
	ab_test_old(t, AB_ROW(ab_of_absent(), ab_of_integer(1)));
	ab_test_update(t, "1", AB_ROW(ab_of_text("old"), ab_of_integer(2)));
	ab_test_old(t, AB_ROW(ab_of_text("x"), ab_of_absent()));
	ab_test_update(t, "1", AB_ROW(ab_of_text("old"), ab_of_integer(2)));
	ab_test_update(t, "1", AB_ROW(ab_of_text("old"), ab_of_integer(2)));
	ab_test_delete(t, "1", AB_ROW(ab_of_text("put"), ab_of_integer(5)));
	AB_EXPECT_DOCUMENT(t, 0, "[1,false]");
	AB_EXPECT_DOCUMENT(t, 1, "[null,true]");
	AB_EXPECT_DOCUMENT(t, 2, "[null,true]");
	AB_EXPECT_DOCUMENT(t, 3, "5");
}

static void the_host_is_there(ab_test *t)
{
	ab_test_config(t, "setting", "of the test");
	ab_test_insert(t, "1", AB_ROW(ab_of_text("config"), ab_of_null()));
	ab_test_insert(t, "1", AB_ROW(ab_of_text("memory"), ab_of_null()));
	AB_EXPECT_DOCUMENT(t, 0, "\"of the test\"");
	AB_EXPECT_DOCUMENT(t, 1, "\"a-1\"");
	AB_EXPECT(t, ab_test_lines(t) == 2);
	AB_EXPECT_TEXT(t, ab_str_of(ab_test_line(t, 0)), "warn: line 7");
}

static void other_columns_end_the_batch(ab_test *t)
{
	ab_test_columns(t, AB_LIST("value", "what"));
	ab_test_insert(t, "1", AB_ROW(ab_of_null(), ab_of_null()));
	AB_EXPECT(t, ab_test_failure(t) != NULL && ab_str_is(ab_test_failure(t)->code, "columns"));
}

static void a_damaged_request_is_told(ab_test *t)
{
	/* {"v":1,"relation":{"columns":["what","value"]},"origin":"stream","changes":[["read","1",["none",7],nil,1,2,3,[[1],[]],{}]]} */
	static const uint8_t whole[] =
		"\x84\xa1v\x01\xa8relation\x81\xa7""columns\x92\xa4what\xa5value\xa6origin\xa6stream\xa7""changes\x91"
		"\x99\xa4read\xa1\x31\x92\xa4none\x07\xc0\x01\x02\x03\x92\x91\x01\x90\x80";
	ab_str reply;
	ab_failure failure;
	AB_EXPECT(t, ab_run(&ab_the_plugin, whole, sizeof whole - 1, &reply, &failure));
	AB_EXPECT(t, reply.size == 3 && memcmp(reply.data, "\x91\x91\x01", 3) == 0);
	for (size_t size = 0; size < sizeof whole - 1; size++)
		AB_EXPECT(t, !ab_run(&ab_the_plugin, whole, size, &reply, &failure));
	/* Every byte in turn is another; nothing may be read that is not there (the sanitizers watch). */
	uint8_t changed[sizeof whole];
	for (size_t at = 0; at < sizeof whole - 1; at++) {
		for (int byte = 0; byte < 256; byte++) {
			memcpy(changed, whole, sizeof whole);
			changed[at] = (uint8_t)byte;
			ab_run(&ab_the_plugin, changed, sizeof whole - 1, &reply, &failure);
		}
	}
	changed[0] = 0x81;
	memcpy(changed + 1, "\xa1v\x02", 3);
	AB_EXPECT(t, !ab_run(&ab_the_plugin, changed, 4, &reply, &failure));
	AB_EXPECT(t, ab_str_is(failure.code, "payload-version"));
}

static void describe_is_json(ab_test *t)
{
	AB_EXPECT_TEXT(t, ab_describe(&ab_the_plugin),
		       "{\"name\":\"unnamed\",\"version\":\"0.0.0\",\"kind\":\"transform\",\"encoding\":\"msgpack\","
		       "\"tables\":[\"public.odd\",\"a.\\\"b\\\"\"],\"columns\":[\"what\",\"value\"],\"depends_on\":[],"
		       "\"sdk\":\"anabranch-sdk-c 0.1.0\"}");
}

AB_TESTS(every_value_becomes_json, what_is_escaped_is_found_anywhere, long_texts_and_many_items_are_read, outcomes_are_told_apart,
	 a_value_of_another_type_is_poison, numbers_keep_their_digits, documents_that_are_no_json_fail,
	 old_rows_are_told_from_none, the_host_is_there, other_columns_end_the_batch, a_damaged_request_is_told,
	 describe_is_json)
