/* A sink that builds a destination beside what its readers see, natively. */
#include <stdio.h>
#include <string.h>

#include "anabranch_sink.h"
#include "anabranch_testing.h"

/* What was called, and with what. */
static char seen[256];
/* The place that readers see, and one that is being built; empty where there is none. */
static char shown[41];
static char building[41];

static void note(const char *what, ab_str destination, ab_str place)
{
	snprintf(seen, sizeof seen, "%s %.*s %.*s", what, (int)destination.size, destination.data, (int)place.size,
		 place.data == NULL ? "" : place.data);
}

static bool deliver(ab_delivery *delivery, ab_failure *failure)
{
	note("deliver", delivery->document[0].destination, delivery->place);
	if (delivery->place.data != NULL && !ab_str_is(delivery->place, building) && !ab_str_is(delivery->place, shown))
		return ab_failed(failure, AB_FATAL, "place-gone", "the place is not there");
	ab_accept_rest(delivery);
	return true;
}

static bool purge(ab_str destination, ab_failure *failure)
{
	(void)destination, (void)failure;
	return true;
}

static bool begin(ab_str destination, ab_str place, bool *is_seen, ab_failure *failure)
{
	note("begin", destination, place);
	if (ab_str_is(destination, "broken"))
		return ab_failedf(failure, AB_FATAL, "broken", "no %s", "places");
	if (ab_str_is(destination, "silent"))
		return false;
	snprintf(building, sizeof building, "%.*s", (int)place.size, place.data);
	if (!ab_str_is(destination, "forgotten"))
		*is_seen = shown[0] != 0;
	return true;
}

static bool switch_to(ab_str destination, ab_str place, ab_failure *failure)
{
	note("switch", destination, place);
	if (ab_str_is(destination, "silent"))
		return false;
	if (!ab_str_is(place, building))
		return ab_failed(failure, AB_FATAL, "place-gone", "the place is not there");
	strcpy(shown, building);
	building[0] = 0;
	return true;
}

static bool abandon(ab_str destination, ab_str place, ab_failure *failure)
{
	(void)failure;
	note("abandon", destination, place);
	building[0] = 0;
	return !ab_str_is(destination, "silent");
}

AB_SWITCHING_SINK(.deliver = deliver, .purge = purge, .begin = begin, .switch_to = switch_to, .abandon = abandon);

static bool said(ab_test *t, ab_class failure_class, const char *code)
{
	const ab_failure *failure = ab_test_failure(t);
	return failure != NULL && failure->failure_class == failure_class && ab_str_is(failure->code, code);
}

static void a_destination_is_built_beside_what_readers_see(ab_test *t)
{
	bool is_seen = true;
	AB_EXPECT(t, ab_test_open(t));
	AB_EXPECT(t, ab_test_begin(t, "items", "1-a", &is_seen) && !is_seen);
	AB_EXPECT(t, strcmp(seen, "begin items 1-a") == 0);
	AB_EXPECT(t, ab_test_switch(t, "items", "1-a") && strcmp(seen, "switch items 1-a") == 0);
	AB_EXPECT(t, ab_test_begin(t, "items", "2-b", &is_seen) && is_seen);
	ab_test_upsert(t, "items", "1", "{}");
	ab_test_place(t, "2-b");
	AB_EXPECT(t, ab_test_deliver(t) && strcmp(seen, "deliver items 2-b") == 0);
	AB_EXPECT_ACCEPTED(t, 0);
	ab_test_upsert(t, "items", "1", "{}");
	AB_EXPECT(t, ab_test_deliver(t) && strcmp(seen, "deliver items ") == 0);
	AB_EXPECT(t, ab_test_abandon(t, "items", "2-b") && strcmp(seen, "abandon items 2-b") == 0);
	ab_test_upsert(t, "items", "1", "{}");
	ab_test_place(t, "2-b");
	AB_EXPECT(t, !ab_test_deliver(t) && said(t, AB_FATAL, "place-gone"));
	AB_EXPECT(t, !ab_test_switch(t, "items", "2-b") && said(t, AB_FATAL, "place-gone"));
}

static void failures_are_told(ab_test *t)
{
	bool is_seen = false;
	AB_EXPECT(t, !ab_test_begin(t, "broken", "3-c", &is_seen) && said(t, AB_FATAL, "broken"));
	AB_EXPECT_TEXT(t, ab_test_failure(t)->message, "no places");
	AB_EXPECT(t, !ab_test_begin(t, "silent", "3-c", &is_seen) && said(t, AB_RETRY, "begin"));
	AB_EXPECT(t, !ab_test_switch(t, "silent", "3-c") && said(t, AB_RETRY, "switch"));
	AB_EXPECT(t, !ab_test_abandon(t, "silent", "3-c") && said(t, AB_RETRY, "abandon"));
	/* Nobody is shown what is not whole because of a line that was forgotten. */
	is_seen = false;
	AB_EXPECT(t, ab_test_begin(t, "forgotten", "3-c", &is_seen) && is_seen);
}

static void all_of_it_is_declared_or_nothing(ab_test *t)
{
	static const struct {
		ab_kind kind;
		const char *without;
		const char *message;
	} cases[] = {
		{AB_A_SWITCHING_SINK, "", NULL},
		{AB_A_SWITCHING_SINK, "purge", "AB_SWITCHING_SINK without `.purge`"},
		{AB_A_SWITCHING_SINK, "begin", "AB_SWITCHING_SINK without `.begin`: use AB_PURGING_SINK"},
		{AB_A_SWITCHING_SINK, "switch_to", "AB_SWITCHING_SINK without `.switch_to`: use AB_PURGING_SINK"},
		{AB_A_SWITCHING_SINK, "abandon", "AB_SWITCHING_SINK without `.abandon`: use AB_PURGING_SINK"},
		{AB_A_PURGING_SINK, "", "`.begin`, `.switch_to` and `.abandon` are exported by AB_SWITCHING_SINK alone"},
		{AB_A_SINK, "begin", "`.begin`, `.switch_to` and `.abandon` are exported by AB_SWITCHING_SINK alone"},
	};
	for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
		ab_plugin plugin = ab_the_plugin;
		ab_failure failure = {0};
		const char *without = cases[at].without;
		plugin.kind = cases[at].kind;
		plugin.purge = strcmp(without, "purge") == 0 ? NULL : purge;
		plugin.begin = strcmp(without, "begin") == 0 ? NULL : begin;
		plugin.switch_to = strcmp(without, "switch_to") == 0 ? NULL : switch_to;
		plugin.abandon = strcmp(without, "abandon") == 0 ? NULL : abandon;
		AB_EXPECT(t, ab_run_open(&plugin, AB_STR("{}"), &failure) == (cases[at].message == NULL));
		if (cases[at].message != NULL)
			AB_EXPECT_TEXT(t, failure.message, cases[at].message);
	}
}

AB_TESTS(a_destination_is_built_beside_what_readers_see, failures_are_told, all_of_it_is_declared_or_nothing)
