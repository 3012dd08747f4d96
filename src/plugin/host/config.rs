//! `config`: the mapping's settings, read-only.

use std::{collections::BTreeMap, sync::Arc};

/// The settings of one mapping. Guests may remember them, so that an instance only ever serves equal ones.
pub(in crate::plugin) type Settings = Arc<BTreeMap<String, String>>;
