/* Makes documents of `{{table_comment}}`. */
#include "anabranch.h"

/* The columns that are read, in this order; no others are sent. */
enum {
{{positions}}
};

static ab_outcome transform(ab_change *change)
{
	/* `return AB_NONE;`: this row has no document. */
	ab_json *out = ab_document(change);
	ab_object(out);
{{puts}}
	ab_end(out);
	return AB_EMIT;
}

AB_PLUGIN(.tables = AB_LIST({{table_text}}),
	  .columns = AB_LIST({{columns}}),
	  .transform = transform);
