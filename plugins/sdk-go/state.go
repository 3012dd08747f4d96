package anabranch

// A small store of keys and values, of each mapping and generation alone (`[plugins.<name>.grants] state = true`). What a
// call writes is durable before its documents are delivered, and lost if the call fails. A batch that is sent again may
// meet its own earlier writes: write what is the same when it is written twice.

const aKey = "a key of the store"

// StateGet gives the value under a key, where there is one.
func StateGet(key string) (value []byte, there bool, err error) {
	values, err := StateGetMany(key)
	if err != nil || len(values) != 1 || values[0] == nil {
		return nil, false, err
	}
	return values[0], true, nil
}

// StateGetMany gives the values under some keys, in their order; nil where there is none.
func StateGetMany(keys ...string) ([][]byte, error) {
	if err := areTexts(aKey, keys...); err != nil {
		return nil, err
	}
	values, failure := hostStateGet(keys)
	return values, errorOf(failure)
}

// StateSet puts a value under a key.
func StateSet(key string, value []byte) error {
	if err := isText(aKey, key); err != nil {
		return err
	}
	return errorOf(hostStateSet(key, value))
}

// StateDelete removes a key, whether it is there or not.
func StateDelete(key string) error {
	if err := isText(aKey, key); err != nil {
		return err
	}
	return errorOf(hostStateDelete(key))
}

// StateKeys gives the keys that begin with a prefix, after a key (from the first, if it is empty), in the order of their
// bytes; so many at the most.
func StateKeys(prefix, after string, limit uint32) ([]string, error) {
	if err := areTexts(aKey, prefix, after); err != nil {
		return nil, err
	}
	keys, failure := hostStateKeys(prefix, after, limit)
	return keys, errorOf(failure)
}
