//! One folder a major version of the interface; nothing else names generated bindings.

pub(super) mod v1;
