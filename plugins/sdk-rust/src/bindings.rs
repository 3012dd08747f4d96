//! Generated from `wit/v1`; used by [`export!`](crate::export), not by people.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

wit_bindgen::generate!({
    path: "../../wit/v1",
    world: "transform-plugin",
    pub_export_macro: true,
    export_macro_name: "export_plugin",
});
