/* Sinks, natively: results, settings, damaged requests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "anabranch_sink.h"
#include "anabranch_testing.h"
#include "internal.h"

static char opened_with[64];
static char seen[256];

static bool open_sink(ab_str settings, ab_failure *failure)
{
	ab_str url;
	if (!ab_config("url", &url))
		return ab_failed(failure, AB_FATAL, "settings", "there is no `url`");
	snprintf(opened_with, sizeof opened_with, "%.*s", (int)settings.size, settings.data);
	return true;
}

static bool deliver(ab_delivery *delivery, ab_failure *failure)
{
	seen[0] = 0;
	for (size_t at = 0; at < delivery->count; at++) {
		const ab_document_in *document = &delivery->document[at];
		size_t end = strlen(seen);
		snprintf(seen + end, sizeof seen - end, "%.*s/%.*s=%.*s;", (int)document->destination.size,
			 document->destination.data, (int)document->id.size, document->id.data,
			 document->body.data == NULL ? 1 : (int)document->body.size,
			 document->body.data == NULL ? "-" : document->body.data);
		if (ab_str_is(document->id, "poison"))
			ab_refuse(delivery, at, AB_POISON, "bad", "it is bad");
		else if (ab_str_is(document->id, "format"))
			ab_refusef(delivery, at, AB_FATAL, "bad", "%s", "it is bad");
		else if (ab_str_is(document->id, "later"))
			ab_refuse_for(delivery, at, 1500, "busy", "later");
		else if (ab_str_is(document->id, "nothing"))
			return ab_failedf(failure, AB_RETRY, "down", "%s", "the server is down");
		else if (ab_str_is(document->id, "cut whole"))
			return ab_failedf(failure, AB_RETRY, "cut", "%.4s %.1s", "Köln", "Köln" + 1);
		else if (ab_str_is(document->id, "cut"))
			ab_refusef(delivery, at, AB_POISON, "cut", "%.2s", "Köln");
		else if (ab_str_is(document->id, "beyond"))
			ab_accept(delivery, delivery->count);
		else if (ab_str_is(document->id, "far beyond"))
			ab_refuse_for(delivery, SIZE_MAX, 1, "busy", "later");
		else if (ab_str_is(document->id, "silent"))
			return false;
		else if (ab_str_is(document->id, "rest"))
			ab_accept_rest(delivery);
		else if (!ab_str_is(document->id, "forgotten"))
			ab_accept(delivery, at);
	}
	return true;
}

static bool purge(ab_str destination, ab_failure *failure)
{
	if (ab_str_is(destination, "kept"))
		return ab_failed(failure, AB_POISON, "kept", "it is kept");
	if (destination.size > 4 && memcmp(destination.data, "kept", 4) == 0) {
		*failure = (ab_failure){AB_POISON, AB_STR("kept"), destination};
		return false;
	}
	return true;
}

AB_PURGING_SINK(.settings = AB_LIST("url", "key"), .open = open_sink, .deliver = deliver, .purge = purge);

static bool failed_with(ab_test *t, ab_class failure_class, const char *code, const char *message)
{
	const ab_failure *failure = ab_test_failure(t);
	if (failure == NULL)
		return false;
	AB_EXPECT_TEXT(t, failure->message, message);
	return failure->failure_class == failure_class && ab_str_is(failure->code, code);
}

static void settings_are_looked_at(ab_test *t)
{
	AB_EXPECT(t, !ab_test_open(t));
	AB_EXPECT(t, failed_with(t, AB_FATAL, "settings", "there is no `url`"));
	ab_test_config(t, "url", "http://x \"y\" key");
	AB_EXPECT(t, ab_test_open(t));
	AB_EXPECT(t, strcmp(opened_with, "{\"url\":\"http://x \\\"y\\\" key\"}") == 0);
	ab_test_config(t, "kye", "marker-4711");
	AB_EXPECT(t, !ab_test_open(t));
	AB_EXPECT(t, failed_with(t, AB_FATAL, "settings",
				 "`config` of the sink: unknown setting `kye`; there is url, key"));
}

static void names_within_settings_are_not_looked_at(ab_test *t)
{
	ab_test_config(t, "url", "x");
	ab_failure failure;
	static const struct {
		const char *json;
		bool fits;
	} cases[] = {
		{"{}", true},
		{"{\"url\":{\"a\":1,\"b\":[{\"c\":\"}\"}]},\"key\":[\"x\",\"\\\",\\\"z\"]}", true},
		{"{\"url\":{\"a\":1},\"b\":2}", false},
		{"{\"\":1}", false},
	};
	for (size_t at = 0; at < sizeof cases / sizeof *cases; at++)
		AB_EXPECT(t, ab_run_open(&ab_the_plugin, ab_str_of(cases[at].json), &failure) == cases[at].fits);
}

static void what_is_declared_has_to_be_there(ab_test *t)
{
	ab_test_config(t, "url", "x");
	static const struct {
		ab_kind kind;
		bool delivers;
		bool purges;
		const char *message;
	} cases[] = {
		{AB_A_SINK, true, true, "AB_SINK exports no `.purge`: use AB_PURGING_SINK"},
		{AB_A_PURGING_SINK, true, false, "AB_PURGING_SINK without `.purge`: use AB_SINK"},
		{AB_A_SINK, false, false, "the sink has no `.deliver`"},
		{AB_A_TRANSFORM, true, false, "AB_PLUGIN declares a transform: use AB_SINK"},
		{AB_A_SINK, true, false, NULL},
		{AB_A_PURGING_SINK, true, true, NULL},
	};
	for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
		ab_plugin plugin = ab_the_plugin;
		ab_failure failure = {0};
		plugin.kind = cases[at].kind;
		plugin.deliver = cases[at].delivers ? deliver : NULL;
		plugin.purge = cases[at].purges ? purge : NULL;
		AB_EXPECT(t, ab_run_open(&plugin, AB_STR("{}"), &failure) == (cases[at].message == NULL));
		if (cases[at].message == NULL)
			continue;
		AB_EXPECT_TEXT(t, failure.message, cases[at].message);
		AB_EXPECT(t, failure.failure_class == AB_FATAL && ab_str_is(failure.code, "declaration"));
	}
}

static void each_document_has_a_result(ab_test *t)
{
	ab_test_upsert(t, "items", "1", "{\"a\":1}");
	ab_test_upsert(t, "items", "poison", "{}");
	ab_test_remove(t, "other", "2");
	ab_test_upsert(t, "items", "format", "{}");
	ab_test_upsert(t, "items", "later", "{}");
	AB_EXPECT(t, ab_test_deliver(t));
	AB_EXPECT(t, strcmp(seen, "items/1={\"a\":1};items/poison={};other/2=-;items/format={};items/later={};") == 0);
	AB_EXPECT_ACCEPTED(t, 0);
	AB_EXPECT_REFUSED(t, 1, "bad");
	AB_EXPECT_ACCEPTED(t, 2);
	AB_EXPECT(t, ab_test_result_of(t, 3)->failure.failure_class == AB_FATAL);
	AB_EXPECT_TEXT(t, ab_test_result_of(t, 3)->failure.message, "it is bad");
	AB_EXPECT_REFUSED(t, 4, "busy");
	AB_EXPECT(t, ab_test_result_of(t, 4)->after_ms == 1500);
	ab_test_upsert(t, "items", "forgotten", "{}");
	ab_test_upsert(t, "items", "rest", "{}");
	AB_EXPECT(t, ab_test_deliver(t));
	AB_EXPECT_ACCEPTED(t, 0);
}

static void what_has_no_result_is_not_accepted(ab_test *t)
{
	ab_test_upsert(t, "items", "1", "{}");
	ab_test_upsert(t, "items", "forgotten", "{}");
	AB_EXPECT(t, !ab_test_deliver(t));
	AB_EXPECT(t, failed_with(t, AB_FATAL, "results", "document 1 of 2 was neither accepted nor refused by the sink"));
}

static void what_is_not_there_has_no_result(ab_test *t)
{
	ab_test_upsert(t, "items", "beyond", "{}");
	ab_test_upsert(t, "items", "rest", "{}");
	AB_EXPECT(t, !ab_test_deliver(t));
	AB_EXPECT(t, failed_with(t, AB_FATAL, "results", "the sink gave a result for document 2 of 2"));
	ab_test_upsert(t, "items", "far beyond", "{}");
	ab_test_upsert(t, "items", "rest", "{}");
	AB_EXPECT(t, !ab_test_deliver(t));
	ab_test_upsert(t, "items", "1", "{}");
	AB_EXPECT(t, ab_test_deliver(t));
	AB_EXPECT_ACCEPTED(t, 0);
}

static void a_batch_may_fail_whole(ab_test *t)
{
	ab_test_upsert(t, "items", "nothing", "{}");
	AB_EXPECT(t, !ab_test_deliver(t));
	AB_EXPECT(t, failed_with(t, AB_RETRY, "down", "the server is down"));
	ab_test_upsert(t, "items", "silent", "{}");
	AB_EXPECT(t, !ab_test_deliver(t));
	AB_EXPECT(t, failed_with(t, AB_RETRY, "deliver", "the sink returned false without ab_failed"));
}

static void failures_are_utf8(ab_test *t)
{
	ab_test_upsert(t, "items", "cut", "{}");
	AB_EXPECT(t, ab_test_deliver(t));
	AB_EXPECT_TEXT(t, ab_test_result_of(t, 0)->failure.message, "K\xef\xbf\xbd");
	ab_test_upsert(t, "items", "cut whole", "{}");
	AB_EXPECT(t, !ab_test_deliver(t));
	AB_EXPECT(t, failed_with(t, AB_RETRY, "cut", "Köl \xef\xbf\xbd"));
	AB_EXPECT(t, !ab_test_purge(t, "kept\xc3"));
	AB_EXPECT(t, failed_with(t, AB_POISON, "kept", "kept\xef\xbf\xbd"));
	static const char *const texts[][2] = {
		{"", ""}, {"aß€😀", "aß€😀"}, {"\xed\x9f\xbf", "\xed\x9f\xbf"}, {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
		{"\xc1\xbf", "\xef\xbf\xbd\xef\xbf\xbd"}, {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
		{"\xe2\x82", "\xef\xbf\xbd\xef\xbf\xbd"}, {"\xe2\x82x", "\xef\xbf\xbd\xef\xbf\xbdx"},
		{"\xf5x\x80", "\xef\xbf\xbdx\xef\xbf\xbd"},
	};
	for (size_t at = 0; at < sizeof texts / sizeof *texts; at++)
		AB_EXPECT_TEXT(t, ab_lossy(ab_str_of(texts[at][0])), texts[at][1]);
}

static void a_destination_is_emptied(ab_test *t)
{
	AB_EXPECT(t, ab_test_purge(t, "items"));
	AB_EXPECT(t, !ab_test_purge(t, "kept"));
	AB_EXPECT(t, failed_with(t, AB_POISON, "kept", "it is kept"));
}

static void damaged_requests_are_told(ab_test *t)
{
	/* As tests/golden/payload/deliver.msgpack.hex, smaller: one upsert and one delete. */
	static const uint8_t whole[] =
		"\x86\xa1v\x01\xa6""entity\xa8public.t\xa6origin\xa8""backfill\xaa""generation\x03\xac""destinations\x91\xa1""d"
		"\xa9""documents\x92\x97\xa6upsert\xa1\x31\x00\xc4\x02{}\x00\x00\x80\x97\xa6""delete\xa1\x32\x00\xc0\x00\x00\x80";
	ab_str reply;
	ab_failure failure;
	AB_EXPECT(t, ab_run_deliver(&ab_the_plugin, whole, sizeof whole - 1, &reply, &failure));
	AB_EXPECT(t, reply.size == 5 && memcmp(reply.data, "\x92\x91\x00\x91\x00", 5) == 0);
	for (size_t size = 0; size < sizeof whole - 1; size++) {
		uint8_t *cut = malloc(size + 1);
		memcpy(cut, whole, size);
		AB_EXPECT(t, !ab_run_deliver(&ab_the_plugin, cut, size, &reply, &failure));
		free(cut);
	}
	uint8_t changed[sizeof whole];
	for (size_t at = 0; at < sizeof whole - 1; at++) {
		for (int byte = 0; byte < 256; byte++) {
			memcpy(changed, whole, sizeof whole);
			changed[at] = (uint8_t)byte;
			ab_run_deliver(&ab_the_plugin, changed, sizeof whole - 1, &reply, &failure);
		}
	}
}

static void describe_is_that_of_a_sink(ab_test *t)
{
	AB_EXPECT(t, strstr(ab_describe(&ab_the_plugin).data, "\"kind\":\"sink\",\"encoding\":\"msgpack\"") != NULL);
}

AB_TESTS(settings_are_looked_at, names_within_settings_are_not_looked_at, what_is_declared_has_to_be_there, each_document_has_a_result,
	 what_has_no_result_is_not_accepted, what_is_not_there_has_no_result, a_batch_may_fail_whole, failures_are_utf8, a_destination_is_emptied, damaged_requests_are_told,
	 describe_is_that_of_a_sink)
