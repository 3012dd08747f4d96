/* Rows in, documents out, whole batches as the host sends them. */
#include <string.h>

#include "anabranch_testing.h"

static void insert(ab_test *t, const char *price, bool active)
{
	ab_test_insert(t, "1", AB_ROW(
		ab_of_text("Kettle \"Uno\""),
		ab_of_null(),
		ab_of_text(price),
		ab_of_bool(active),
		ab_of_array(AB_ROW(ab_of_text("kitchen"), ab_of_text("steel"))),
		ab_of_json("{\"watts\": 2200.50}")
	));
}

static void an_active_product_is_found(ab_test *t)
{
	insert(t, "19.90", true);
	AB_EXPECT_DOCUMENT(t, 0, "{\"title\":\"Kettle \\\"Uno\\\"\",\"text\":\"\",\"price\":19.90,"
				 "\"tags\":[\"kitchen\",\"steel\"],\"attributes\":{\"watts\": 2200.50}}");
}

static void a_price_that_is_no_number_is_null(ab_test *t)
{
	insert(t, "NaN", true);
	AB_EXPECT(t, strstr(ab_test_answer(t, 0)->document->text.data, "\"price\":null") != NULL);
}

static void an_inactive_product_has_no_document(ab_test *t)
{
	insert(t, "19.90", false);
	insert(t, "1", true);
	AB_EXPECT(t, ab_test_answer(t, 0)->outcome == AB_NONE);
	AB_EXPECT(t, ab_test_answer(t, 1)->outcome == AB_EMIT);
}

AB_TESTS(an_active_product_is_found, a_price_that_is_no_number_is_null, an_inactive_product_has_no_document)
