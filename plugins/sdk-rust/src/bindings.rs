//! Generated from `wit/v1`; used by [`export!`](crate::export), not by people.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(unsafe_op_in_unsafe_fn)]

#[cfg(feature = "generate")]
wit_bindgen::generate!({
    path: "../../wit/v1",
    world: "transform-plugin",
    pub_export_macro: true,
    export_macro_name: "export_plugin",
});

#[cfg(not(feature = "generate"))]
#[rustfmt::skip]
#[path = "generated.rs"]
mod generated;
#[cfg(not(feature = "generate"))]
pub use generated::{anabranch, export_plugin, exports};
