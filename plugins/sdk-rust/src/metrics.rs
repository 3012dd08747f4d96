//! Numbers of its own at the host's /metrics (`[plugins.<name>.grants] metrics = true`).
//!
//! The host adds the labels `plugin` and `mapping`, and bounds how many series there may be: give labels few values.
//! Natively (in unit tests) numbers are kept for [`testing::metric`](crate::testing::metric).

use crate::Failure;

/// Adds to a counter, which is shown as `anabranch_guest_<name>_total`.
///
/// # Errors
/// The name or a label is none, or there are more series than the config allows.
pub fn count(name: &str, labels: &[(&str, &str)], by: u64) -> Result<(), Failure> {
    #[cfg(target_family = "wasm")]
    return host::count(name, &host_labels(labels), by).map_err(Failure::from);
    #[cfg(not(target_family = "wasm"))]
    #[expect(clippy::cast_precision_loss, reason = "a test's numbers are small")]
    {
        crate::testing::record_metric(name, labels, |value| value + by as f64);
        Ok(())
    }
}

/// Sets a gauge, which is shown as `anabranch_guest_<name>`.
///
/// # Errors
/// As [`count`].
pub fn gauge(name: &str, labels: &[(&str, &str)], value: f64) -> Result<(), Failure> {
    #[cfg(target_family = "wasm")]
    return host::gauge(name, &host_labels(labels), value).map_err(Failure::from);
    #[cfg(not(target_family = "wasm"))]
    {
        crate::testing::record_metric(name, labels, |_| value);
        Ok(())
    }
}

#[cfg(target_family = "wasm")]
use crate::bindings::capabilities::anabranch::plugin::metrics as host;

#[cfg(target_family = "wasm")]
fn host_labels(labels: &[(&str, &str)]) -> Vec<host::Label> {
    let label =
        |&(name, value): &(&str, &str)| host::Label { name: name.to_owned(), value: value.to_owned() };
    labels.iter().map(label).collect()
}
