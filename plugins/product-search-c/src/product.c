/*
 * Makes search documents of `public.products`, as `product-search` does in Rust.
 *
 * Products that are not active have none.
 */
#include "anabranch.h"

enum { NAME, DESCRIPTION, PRICE, ACTIVE, TAGS, ATTRIBUTES };

static ab_outcome transform(ab_change *change)
{
	if (!ab_bool(change, ACTIVE))
		return AB_NONE;
	ab_json *out = ab_document(change);
	ab_object(out);
	ab_key(out, "title");
	ab_put_text(out, ab_text(change, NAME));
	ab_key(out, "text");
	ab_put_text(out, ab_text_or(change, DESCRIPTION, AB_STR("")));
	ab_key(out, "price");
	ab_put_number(out, ab_text(change, PRICE));
	ab_key(out, "tags");
	if (ab_is_null(change, TAGS)) {
		ab_array(out);
		ab_end(out);
	} else {
		ab_put(out, ab_get(change, TAGS));
	}
	ab_key(out, "attributes");
	ab_put(out, ab_get(change, ATTRIBUTES));
	ab_end(out);
	return AB_EMIT;
}

AB_PLUGIN(.tables = AB_LIST("public.products"),
	  .columns = AB_LIST("name", "description", "price", "active", "tags", "attributes"),
	  .destination = "products", .transform = transform);
