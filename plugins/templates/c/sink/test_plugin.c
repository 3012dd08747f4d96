#include <stdio.h>
#include <string.h>

#include "anabranch_testing.h"

/* What a service was sent that has nothing yet. */
static char sent[256];

static bool service(const ab_request *request, ab_response *response, ab_failure *failure)
{
	(void)failure; /* what `ab_http` fails with, where it returns false */
	size_t end = strlen(sent);
	snprintf(sent + end, sizeof sent - end, "%s %.*s\n", request->method, (int)request->url.size, request->url.data);
	response->status = ab_str_is(request->body, "\"busy\"")  ? 503
			   : ab_str_is(request->body, "\"bad\"") ? 422
			   : request->body.size == 0		 ? 404
								 : 201;
	return true;
}

static void begin(ab_test *t)
{
	sent[0] = 0;
	ab_test_http(t, service);
	ab_test_config(t, "url", "https://x");
	AB_EXPECT(t, ab_test_open(t));
}

static void each_document_has_a_result(ab_test *t)
{
	begin(t);
	ab_test_upsert(t, "items", "1", "{}");
	ab_test_upsert(t, "items", "2", "\"bad\"");
	ab_test_remove(t, "items", "a/ü");
	ab_test_remove(t, "items", "..");
	AB_EXPECT(t, ab_test_deliver(t));
	AB_EXPECT_ACCEPTED(t, 0);
	AB_EXPECT_REFUSED(t, 1, "refused");
	AB_EXPECT_ACCEPTED(t, 2);
	AB_EXPECT_REFUSED(t, 3, "id");
	AB_EXPECT(t, strcmp(sent, "PUT https://x/items/1\nPUT https://x/items/2\nDELETE https://x/items/a%2F%C3%BC\n") == 0);
}

static void nothing_is_sent_behind_what_has_to_come_again(ab_test *t)
{
	begin(t);
	ab_test_upsert(t, "items", "1", "\"busy\"");
	ab_test_upsert(t, "items", "2", "{}");
	AB_EXPECT(t, !ab_test_deliver(t));
	AB_EXPECT(t, ab_test_failure(t)->failure_class == AB_RETRY);
	AB_EXPECT(t, strcmp(sent, "PUT https://x/items/1\n") == 0);
}

static void a_misspelt_setting_is_refused(ab_test *t)
{
	begin(t);
	ab_test_config(t, "uri", "");
	AB_EXPECT(t, !ab_test_open(t));
}

AB_TESTS(each_document_has_a_result, nothing_is_sent_behind_what_has_to_come_again, a_misspelt_setting_is_refused)
