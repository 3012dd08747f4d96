//! A small store of keys and values, of each mapping and generation alone (`[plugins.<name>.grants] state = true`).
//!
//! What a call writes is durable before its documents are delivered, and lost if the call fails. A batch that is sent
//! again may meet its own earlier writes, so write what is the same when it is written twice. Natively (in unit tests)
//! the store is the thread's: [`testing::clear_state`](crate::testing::clear_state).

use crate::Failure;

/// The value under a key.
///
/// # Errors
/// The store cannot be reached now.
pub fn get(key: &str) -> Result<Option<Vec<u8>>, Failure> {
    Ok(get_many(&[key])?.pop().flatten())
}

/// The values under some keys, in their order, read in one go.
///
/// # Errors
/// As [`get`].
pub fn get_many(keys: &[&str]) -> Result<Vec<Option<Vec<u8>>>, Failure> {
    #[cfg(target_family = "wasm")]
    {
        let keys: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
        host::get(&keys).map_err(Failure::from)
    }
    #[cfg(not(target_family = "wasm"))]
    return Ok(crate::testing::with_state(|state| keys.iter().map(|&key| state.get(key).cloned()).collect()));
}

/// Puts a value under a key.
///
/// # Errors
/// It is more than the config allows.
pub fn set(key: &str, value: &[u8]) -> Result<(), Failure> {
    #[cfg(target_family = "wasm")]
    return host::set(key, value).map_err(Failure::from);
    #[cfg(not(target_family = "wasm"))]
    {
        crate::testing::with_state(|state| state.insert(key.to_owned(), value.to_owned()));
        Ok(())
    }
}

/// Removes a key, whether it is there or not.
///
/// # Errors
/// As [`get`].
pub fn delete(key: &str) -> Result<(), Failure> {
    #[cfg(target_family = "wasm")]
    return host::delete(key).map_err(Failure::from);
    #[cfg(not(target_family = "wasm"))]
    {
        crate::testing::with_state(|state| state.remove(key));
        Ok(())
    }
}

/// The keys that begin with a prefix, after a key, in the order of their bytes; so many at the most.
///
/// # Errors
/// As [`get`].
pub fn keys(prefix: &str, after: Option<&str>, limit: u32) -> Result<Vec<String>, Failure> {
    #[cfg(target_family = "wasm")]
    return host::keys(prefix, after, limit).map_err(Failure::from);
    #[cfg(not(target_family = "wasm"))]
    return Ok(crate::testing::with_state(|state| {
        let wanted =
            |key: &&String| key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after);
        state.keys().filter(wanted).take(limit as usize).cloned().collect()
    }));
}

#[cfg(target_family = "wasm")]
use crate::bindings::capabilities::anabranch::plugin::state as host;
