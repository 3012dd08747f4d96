/* Capabilities of the host, as a transform meets them, against the doubles that its tests have. */
#include <stdlib.h>
#include <string.h>

#include "anabranch_http.h"
#include "anabranch_testing.h"
#include "internal.h"

enum { WHAT, ARGUMENT };

static ab_outcome told(ab_change *change, ab_str text)
{
	ab_put_text(ab_document(change), text);
	return AB_EMIT;
}

static ab_outcome ask(ab_change *change)
{
	ab_failure failure;
	ab_rows rows;
	if (!ab_select("select id, name from public.brands where id = $1::int", AB_PARAMETERS(ab_text(change, ARGUMENT)),
		       &rows, &failure))
		return ab_fail_as(change, &failure);
	ab_json *out = ab_document(change);
	ab_array(out);
	ab_put_integer(out, rows.left);
	while (ab_next_row(&rows))
		for (size_t at = 0; at < rows.columns; at++) {
			ab_put_text(out, rows.names[at]);
			ab_put(out, &rows.row[at]);
		}
	ab_end(out);
	return AB_EMIT;
}

static ab_outcome ask_many(ab_change *change)
{
	const ab_str parameters[] = {AB_STR("7"), AB_STR("x"), {0}, AB_STR("y")};
	const ab_statement statements[] = {
		{.sql = AB_STR("select name from public.brands where id = $1::int and $2 = 'x'"),
		 .parameters = parameters, .width = 2, .sets = 2},
		{.sql = AB_STR("select 1"), .sets = 1},
	};
	ab_answers answers;
	ab_failure failure;
	if (!ab_query(statements, 2, &answers, &failure))
		return ab_fail_as(change, &failure);
	ab_json *out = ab_document(change);
	ab_array(out);
	ab_rows rows;
	while (ab_next_set(&answers, &rows))
		ab_put_integer(out, rows.left);
	ab_end(out);
	return AB_EMIT;
}

static ab_outcome typed(ab_change *change, bool right)
{
	ab_rows rows;
	if (!ab_select("select id, name from public.brands where id = $1::int", AB_PARAMETERS(ab_text(change, ARGUMENT)),
		       &rows, NULL))
		return AB_FAILED;
	ab_json *out = ab_document(change);
	ab_array(out);
	while (ab_next_row(&rows)) {
		if (right)
			ab_put_integer(out, ab_row_integer(&rows, 0));
		else
			ab_put_text(out, ab_row_text(&rows, 0));
		ab_put_text(out, ab_row_text_or(&rows, 1, AB_STR("none")));
	}
	ab_end(out);
	return AB_EMIT;
}

static ab_outcome keep(ab_change *change)
{
	ab_failure failure;
	const ab_str keys[] = {AB_STR("b"), AB_STR("none"), AB_STR("a")};
	ab_str values[3];
	const ab_str *found;
	size_t count;
	ab_str after = AB_STR("a");
	if (!ab_state_set(AB_STR("b"), ab_text(change, ARGUMENT), &failure) ||
	    !ab_state_set(AB_STR("a"), AB_STR(""), NULL) || !ab_state_set(AB_STR("ab"), AB_STR("x"), NULL) ||
	    !ab_state_delete(AB_STR("never"), NULL) || !ab_state_get_many(keys, 3, values, &failure) ||
	    !ab_state_keys(AB_STR("a"), &after, 10, &found, &count, &failure))
		return ab_fail_as(change, &failure);
	ab_json *out = ab_document(change);
	ab_array(out);
	for (size_t at = 0; at < 3; at++)
		ab_put_text(out, values[at]);
	for (size_t at = 0; at < count; at++)
		ab_put_text(out, found[at]);
	ab_end(out);
	return AB_EMIT;
}

static ab_outcome send_request(ab_change *change)
{
	const ab_request request = {.method = "POST", .url = ab_text(change, ARGUMENT), .body = AB_STR("{}"),
				    AB_HEADERS({AB_STR("accept"), AB_STR("text/plain")})};
	ab_response response;
	ab_failure failure;
	if (!ab_http(&request, &response, &failure))
		return ab_fail_as(change, &failure);
	if (response.status != 200)
		return ab_failf(change, AB_RETRY, "status", "the server answered %d", response.status);
	ab_json *out = ab_document(change);
	ab_array(out);
	ab_put_text(out, response.body);
	ab_put_text(out, ab_response_header(&response, "etag"));
	ab_put_text(out, ab_response_header(&response, "none"));
	ab_end(out);
	return AB_EMIT;
}

static ab_str names[2];
static size_t names_count;

static ab_outcome transform(ab_change *change)
{
	ab_str what = ab_text(change, WHAT);
	if (ab_str_is(what, "ask"))
		return ask(change);
	if (ab_str_is(what, "ask many"))
		return ask_many(change);
	if (ab_str_is(what, "typed") || ab_str_is(what, "mistyped"))
		return typed(change, ab_str_is(what, "typed"));
	if (ab_str_is(what, "keep"))
		return keep(change);
	if (ab_str_is(what, "send"))
		return send_request(change);
	if (ab_str_is(what, "prepared")) {
		/* Memory of a change's own goes with it; what was prepared stays. */
		memset(ab_alloc(100000), 'x', 100000);
		return told(change, names[change->sequence]);
	}
	ab_count("rows", AB_LABELS({AB_STR("kind"), what}), 2, NULL);
	ab_count("rows", AB_LABELS({AB_STR("kind"), what}), 3, NULL);
	ab_gauge("depth", AB_NO_LABELS, 1.5, NULL);
	return told(change, AB_STR("counted"));
}

/* One question for all rows that ask for it. */
static bool prepare(ab_changes *changes, ab_failure *failure)
{
	ab_str asked[2];
	ab_change *change;
	names_count = 0;
	while ((change = ab_next_change(changes)) != NULL) {
		/* Of another type, which is no failure yet. */
		ab_integer(change, WHAT);
		if (ab_str_is(ab_text(change, WHAT), "silent"))
			return false;
		if (ab_str_is(ab_text(change, WHAT), "prepared") && names_count < 2)
			asked[names_count++] = ab_text(change, ARGUMENT);
	}
	if (names_count == 0)
		return true;
	const ab_statement statement = {.sql = AB_STR("select name"), .parameters = asked, .width = 1, .sets = names_count};
	ab_answers answers;
	ab_rows rows;
	if (!ab_query(&statement, 1, &answers, failure))
		return false;
	for (size_t at = 0; ab_next_set(&answers, &rows); at++)
		names[at] = ab_next_row(&rows) ? ab_row_value(&rows, 1)->text : AB_STR("nobody");
	return true;
}

AB_PLUGIN(.columns = AB_LIST("what", "argument"), .transform = transform, .prepare = prepare);

static void insert(ab_test *t, const char *what, const char *argument)
{
	ab_test_insert(t, "1", AB_ROW(ab_of_text(what), ab_of_text(argument)));
}

static void source(ab_test_table *answer, ab_str sql, const ab_str *parameters, size_t width)
{
	(void)sql;
	if (width == 0) {
		ab_test_row(answer, AB_ROW());
		return;
	}
	ab_test_head(answer, width == 1 ? AB_LIST("id", "name") : AB_LIST("name"));
	if (width == 1 && ab_str_is(parameters[0], "7")) {
		ab_test_row(answer, AB_ROW(ab_of_integer(7), ab_of_text("Köln")));
		ab_test_row(answer, AB_ROW(ab_of_integer(8), ab_of_null()));
	} else if (width == 2 && parameters[0].data == NULL) {
		ab_test_row(answer, AB_ROW(ab_of_text("of NULL")));
	}
}

static void answers_come_set_by_set(ab_test *t)
{
	ab_test_query(t, source);
	insert(t, "ask", "7");
	insert(t, "ask", "9");
	insert(t, "ask many", "");
	AB_EXPECT_DOCUMENT(t, 0, "[2,\"id\",7,\"name\",\"Köln\",\"id\",8,\"name\",null]");
	AB_EXPECT_DOCUMENT(t, 1, "[0]");
	AB_EXPECT_DOCUMENT(t, 2, "[0,1,1]");
}

static void the_store_keeps_what_it_is_given(ab_test *t)
{
	insert(t, "keep", "new");
	AB_EXPECT_DOCUMENT(t, 0, "[\"new\",null,\"\",\"ab\"]");
	AB_EXPECT_TEXT(t, ab_test_state(t, "b"), "new");
	AB_EXPECT(t, ab_test_state(t, "none").data == NULL);
}

static void numbers_add_up(ab_test *t)
{
	insert(t, "a", "");
	AB_EXPECT_DOCUMENT(t, 0, "\"counted\"");
	AB_EXPECT(t, ab_test_metric(t, "rows{kind=\"a\"}") == 5);
	AB_EXPECT(t, ab_test_metric(t, "depth") == 1.5);
	AB_EXPECT(t, ab_test_metric(t, "none") == 0);
}

static bool server(const ab_request *request, ab_response *response, ab_failure *failure)
{
	static const ab_header headers[] = {{{"etag", 4}, {"7", 1}}};
	if (ab_str_is(request->url, "http://late/")) {
		*failure = (ab_failure){AB_RETRY, AB_STR("http-timeout"), AB_STR("late")};
		return false;
	}
	response->status = strcmp(request->method, "POST") == 0 && request->header_count == 1 ? 200 : 400;
	response->headers = headers;
	response->header_count = 1;
	response->body = request->body;
	return true;
}

static void requests_are_answered_by_the_test(ab_test *t)
{
	ab_test_http(t, server);
	insert(t, "send", "http://x/");
	insert(t, "send", "http://late/");
	AB_EXPECT_DOCUMENT(t, 0, "[\"{}\",\"7\",null]");
	AB_EXPECT_FAILURE(t, 1, "http-timeout");
	AB_EXPECT(t, ab_test_answer(t, 1)->failure_class == AB_RETRY);
}

static void what_a_test_does_not_answer_is_refused(ab_test *t)
{
	insert(t, "ask", "7");
	insert(t, "send", "http://x/");
	AB_EXPECT_FAILURE(t, 0, "query-denied");
	AB_EXPECT_FAILURE(t, 1, "http-denied");
	AB_EXPECT(t, ab_test_answer(t, 1)->failure_class == AB_FATAL);
}

/* How many rows an answer has; -1 where it is refused. */
static int rows_of(ab_test *t, const void *bytes, size_t size)
{
	ab_answers answers;
	ab_rows rows;
	ab_failure failure = {0};
	int count = 0;
	if (!ab_answers_of((ab_str){bytes, size}, &answers, &failure)) {
		AB_EXPECT_TEXT(t, failure.code, "query-answer");
		AB_EXPECT(t, failure.failure_class == AB_FATAL && !ab_next_set(&answers, &rows));
		return -1;
	}
	while (ab_next_set(&answers, &rows))
		while (ab_next_row(&rows))
			count += 1;
	return count;
}

static void damaged_answers_are_refused(ab_test *t)
{
	static const uint8_t whole[] = "\x92\x01\x92\x92\x92\xa2id\xa4name\x92\x92\x07\xa1\x61\x92\x08\xc0\x92\x90\x90";
	for (size_t size = 0; size < sizeof whole; size++) {
		/* Cut, and at the end whole; on the heap, so that the sanitizers see what is read beyond. */
		uint8_t *bytes = malloc(size + 1);
		memcpy(bytes, whole, size);
		bool right = size == sizeof whole - 1;
		AB_EXPECT(t, rows_of(t, bytes, size) == (right ? 2 : -1));
		for (int changed = 0; changed < 256 && !right && size > 0; changed++) {
			bytes[size - 1] = (uint8_t)changed;
			AB_EXPECT(t, rows_of(t, bytes, size) <= 2);
		}
		free(bytes);
	}
	/* Rows of one value and of three where two have names. */
	AB_EXPECT(t, rows_of(t, "\x92\x01\x91\x92\x92\xa1\x61\xa1\x62\x91\x91\x07", 12) == -1);
	AB_EXPECT(t, rows_of(t, "\x92\x01\x91\x92\x92\xa1\x61\xa1\x62\x91\x93\x07\x07\x07", 14) == -1);
	AB_EXPECT(t, rows_of(t, "\x92\x01\x91\x92\x92\xa1\x61\xa1\x62\x91\x92\x07\x07", 13) == 1);
}

static void values_of_rows_have_types(ab_test *t)
{
	ab_test_query(t, source);
	insert(t, "typed", "7");
	insert(t, "mistyped", "7");
	AB_EXPECT_DOCUMENT(t, 0, "[7,\"Köln\",8,\"none\"]");
	AB_EXPECT_FAILURE(t, 1, "query-row");
	AB_EXPECT_TEXT(t, ab_test_answer(t, 1)->message, "the column id is an integer where text is read");
}

static void what_can_be_no_request_is_poison(ab_test *t)
{
	static const char *const wrong[][2] = {
		{"no url", "to a URL without scheme and host:"}, {"", "to a URL without"}, {"a b://marker", "to a URL without"},
		{"ftp://me:marker@host:21/marker?marker", "to ftp://host:21:"}, {"https:///marker", "to https://:"},
		{"http://?marker", "to http://:"}, {"http:/", "to a URL without"},
	};
	ab_test_http(t, server);
	for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
		ab_failure failure;
		ab_response response;
		const ab_request request = {.url = ab_str_of(wrong[at][0])};
		AB_EXPECT(t, !ab_http(&request, &response, &failure));
		AB_EXPECT_TEXT(t, failure.code, "http-request");
		AB_EXPECT(t, failure.failure_class == AB_POISON);
		ab_str message = ab_format("%.*s", (int)failure.message.size, failure.message.data);
		AB_EXPECT(t, strstr(message.data, wrong[at][1]) != NULL && strstr(message.data, "marker") == NULL);
	}
	static const char *const right[][3] = {
		{"HTTP://x:1?a=b#c", "x:1", "/?a=b"}, {"https://x", "x", "/"}, {"https://x/a?b/c", "x", "/a?b/c"},
	};
	for (size_t at = 0; at < sizeof right / sizeof *right; at++) {
		ab_target target;
		AB_EXPECT(t, ab_target_of(ab_str_of(right[at][0]), &target, NULL) && target.secure == (at > 0));
		AB_EXPECT_TEXT(t, target.authority, right[at][1]);
		AB_EXPECT_TEXT(t, target.path, right[at][2]);
	}
}

static void the_hosts_words_begin_with_what_they_are(ab_test *t)
{
	static const struct {
		const char *said, *code, *message;
		ab_class failure_class;
	} cases[] = {
		{"denied: x: `y`", "http-denied", "x: `y`", AB_FATAL},
		{"timeout: late", "http-timeout", "late", AB_RETRY},
		{"no connection: denied: by x", "http-failed", "no connection: denied: by x", AB_RETRY},
		{"ErrorCode::InternalError(Some(\"denied: set \\\"a\\\"\"))", "http-denied", "set \"a\"", AB_FATAL},
		{"InternalError(Some(\"timeout: late\"))", "http-timeout", "late", AB_RETRY},
		{"InternalError(Some(\"))", "http-failed", "InternalError(Some(\"))", AB_RETRY},
		{"ErrorCode::Reset", "http-failed", "ErrorCode::Reset", AB_RETRY},
	};
	for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
		ab_failure failure;
		AB_EXPECT(t, !ab_http_said(&failure, ab_str_of(cases[at].said)));
		AB_EXPECT_TEXT(t, failure.code, cases[at].code);
		AB_EXPECT_TEXT(t, failure.message, cases[at].message);
		AB_EXPECT(t, failure.failure_class == cases[at].failure_class);
	}
}

static void a_batch_is_prepared_once_before_its_first_change(ab_test *t)
{
	ab_test_query(t, source);
	insert(t, "prepared", "9");
	insert(t, "prepared", "7");
	AB_EXPECT_DOCUMENT(t, 0, "\"nobody\"");
	AB_EXPECT_DOCUMENT(t, 1, "\"Köln\"");
	AB_EXPECT(t, names_count == 2);
}

static void what_cannot_be_prepared_fails_the_batch(ab_test *t)
{
	/* Nobody answers, and nobody says why. */
	static const char *const whats[][2] = {{"prepared", "query-denied"}, {"silent", "exception"}};
	(void)t;
	for (size_t at = 0; at < 2; at++) {
		ab_buffer out = {0};
		ab_str reply = {0};
		ab_failure failure = {0};
		ab_write_map(&out, 3);
		ab_write_text(&out, AB_STR("v"));
		ab_write_integer(&out, 1);
		ab_write_text(&out, AB_STR("relation"));
		ab_write_map(&out, 1);
		ab_write_text(&out, AB_STR("columns"));
		ab_write_array(&out, 2);
		ab_write_text(&out, AB_STR("what"));
		ab_write_text(&out, AB_STR("argument"));
		ab_write_text(&out, AB_STR("changes"));
		ab_write_array(&out, 1);
		ab_write_array(&out, 9);
		ab_write_text(&out, AB_STR("insert"));
		ab_write_text(&out, AB_STR("1"));
		ab_write_array(&out, 2);
		ab_write_text(&out, ab_str_of(whats[at][0]));
		ab_write_text(&out, AB_STR("7"));
		ab_write_text(&out, (ab_str){0});
		ab_write_integer(&out, 1);
		ab_write_integer(&out, 1);
		ab_write_integer(&out, 0);
		ab_write_text(&out, (ab_str){0});
		ab_write_map(&out, 0);
		AB_EXPECT(t, !ab_run(&ab_the_plugin, out.data, out.size, &reply, &failure));
		AB_EXPECT_TEXT(t, failure.code, whats[at][1]);
		free(out.data);
	}
}

/* What a host gave such a text would end the call. */
static void what_is_no_utf8_does_not_leave(ab_test *t)
{
	ab_str bad = AB_STR("K\xc3");
	ab_failure failure = {0};
	ab_rows rows;
	ab_str value;
	const ab_str *keys;
	size_t count;
	ab_response response;
	ab_test_query(t, source);
	ab_test_http(t, server);
#define REFUSED(call, with, words)                                                                   \
	do {                                                                                             \
		AB_EXPECT(t, !(call));                                                                   \
		AB_EXPECT_TEXT(t, failure.code, with);                                                    \
		AB_EXPECT(t, failure.failure_class == AB_POISON);                                         \
		AB_EXPECT(t, failure.message.size > strlen(words) &&                                      \
				     memcmp(failure.message.data, words, strlen(words)) == 0);            \
		failure = (ab_failure){0};                                                               \
	} while (0)
	REFUSED(ab_select("select '\xff'", AB_NO_PARAMETERS, &rows, &failure), "text", "the SQL of a question is no UTF-8");
	REFUSED(ab_select("select $1", AB_PARAMETERS(bad), &rows, &failure), "text", "a parameter of a question");
	REFUSED(ab_state_get(bad, &value, &failure), "text", "a key of the store");
	REFUSED(ab_state_set(bad, bad, &failure), "text", "a key of the store");
	REFUSED(ab_state_delete(bad, &failure), "text", "a key of the store");
	REFUSED(ab_state_keys(bad, NULL, 1, &keys, &count, &failure), "text", "a key of the store");
	REFUSED(ab_state_keys(AB_STR(""), &bad, 1, &keys, &count, &failure), "text", "a key of the store");
	REFUSED(ab_count("K\xc3", AB_NO_LABELS, 1, &failure), "text", "the name of a number");
	REFUSED(ab_gauge("depth", AB_LABELS({bad, value}), 1, &failure), "text", "the name of a label");
	REFUSED(ab_count("rows", AB_LABELS({AB_STR("kind"), bad}), 1, &failure), "text", "the value of a label");
	const ab_request requests[] = {
		{.url = AB_STR("http://K\xc3/")},
		{.url = AB_STR("http://x/K\xc3")},
		{.url = AB_STR("http://x/"), .method = "K\xc3"},
		{.url = AB_STR("http://x/"), AB_HEADERS({bad, AB_STR("y")})},
	};
	static const char *const words[] = {"no request can go to http://K\xef\xbf\xbd:", "no request can go to http://x:",
					    "the method is", "a header cannot"};
	for (size_t at = 0; at < 4; at++)
		REFUSED(ab_http(&requests[at], &response, &failure), "http-request", words[at]);
	/* Values of the store are bytes, and who does not want to know why is not told. */
	AB_EXPECT(t, ab_state_set(AB_STR("bytes"), bad, NULL) && !ab_state_set(bad, bad, NULL));
	AB_EXPECT(t, ab_test_state(t, "bytes").size == 2 && !ab_config("K\xc3", &value));
}

static void parts_of_urls_are_escaped(ab_test *t)
{
	AB_EXPECT_TEXT(t, ab_escaped(AB_STR("aZ09-._~")), "aZ09-._~");
	AB_EXPECT_TEXT(t, ab_escaped(AB_STR("a/b?c#d e%ö+")), "a%2Fb%3Fc%23d%20e%25%C3%B6%2B");
	AB_EXPECT_TEXT(t, ab_escaped(AB_STR("")), "");
}

AB_TESTS(answers_come_set_by_set, the_store_keeps_what_it_is_given, numbers_add_up, requests_are_answered_by_the_test,
	 what_a_test_does_not_answer_is_refused, damaged_answers_are_refused, values_of_rows_have_types,
	 a_batch_is_prepared_once_before_its_first_change, what_cannot_be_prepared_fails_the_batch,
	 what_can_be_no_request_is_poison, what_is_no_utf8_does_not_leave, the_hosts_words_begin_with_what_they_are, parts_of_urls_are_escaped)
