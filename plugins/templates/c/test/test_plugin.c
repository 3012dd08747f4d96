#include "anabranch_testing.h"

static void a_row_becomes_a_document(ab_test *t)
{
	ab_test_insert(t, "1", AB_ROW(
{{test_row}}
	));
	AB_EXPECT_DOCUMENT(t, 0, {{document_text}});
}

AB_TESTS(a_row_becomes_a_document)
