/*
 * The border of a component, by the canonical ABI: what wit/v1 exports and imports as a core module has it. `plugin
 * build` adds the description of the interface and checks every signature against it. Compiled for WebAssembly only.
 */
#ifdef __wasm__

#include <stdlib.h>

#include "internal.h"

#define EXPORT(name) __attribute__((export_name(name)))
#define IMPORT(module, name) __attribute__((import_module(module), import_name(name)))

IMPORT("anabranch:plugin/log@1.0.0", "log")
extern void host_log(int32_t level, const char *text, size_t size);
/* Gives 0, or 1 and a text that the host has put into memory of `cabi_realloc`. */
IMPORT("anabranch:plugin/config@1.0.0", "get")
extern void host_config(const char *key, size_t size, void *result);

/* What comes before a call is its batch, kept for the next; what comes within one is a setting. */
static ab_buffer request;
static bool within;

EXPORT("cabi_realloc")
void *ab_cabi_realloc(void *old, size_t old_size, size_t alignment, size_t size)
{
	(void)old_size;
	(void)alignment;
	/* Nothing of this interface is a list that grows. */
	if (old != NULL)
		abort();
	if (within)
		return ab_alloc(size);
	ab_buffer_reset(&request);
	ab_buffer_room(&request, size + 1);
	return request.data;
}

void ab_host_log(ab_level level, ab_str message)
{
	host_log((int32_t)level, message.data, message.size);
}

bool ab_host_config(ab_str key, ab_str *value)
{
	struct {
		uint8_t is_there;
		ab_str text;
	} result;
	host_config(key.data, key.size, &result);
	if (result.is_there)
		*value = result.text;
	return result.is_there != 0;
}

EXPORT("anabranch:plugin/describe@1.0.0#describe")
void *ab_export_describe(void)
{
	static ab_str result;
	result = ab_describe(&ab_the_plugin);
	return &result;
}

EXPORT("anabranch:plugin/transform@1.0.0#transform")
void *ab_export_transform(const uint8_t *batch, size_t size)
{
	static struct {
		uint8_t failed;
		union {
			ab_str reply;
			struct {
				uint8_t failure_class;
				ab_str code;
				ab_str message;
			} failure;
		};
	} result;
	ab_failure failure;
	ab_str reply;
	within = true;
	result.failed = !ab_run(&ab_the_plugin, batch, size, &reply, &failure);
	within = false;
	if (!result.failed) {
		result.reply = reply;
		return &result;
	}
	result.failure.failure_class = (uint8_t)failure.failure_class;
	result.failure.code = ab_str_of(failure.code);
	result.failure.message = failure.message;
	return &result;
}

#endif
